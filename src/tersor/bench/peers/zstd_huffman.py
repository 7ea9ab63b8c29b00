"""Zstandard's Huffman coder alone."""

from __future__ import annotations

import ctypes
import ctypes.util
import weakref
from typing import Any, Final

import numpy as np
import torch
import zstandard

from tersor.bench.peers.peer import SlicePeer

# Values of ZSTD_cParameter. The last is ZSTD_c_literalCompressionMode, which the Python package does not
# expose. It forces Huffman coding, which the skipping search for matches would otherwise disable.
_PARAMETERS: Final = {
    "compression_level": (100, 1),
    "min_match": (105, 7),
    # for the fast strategy, this is the stride of the match search; it is set to a whole block
    "target_length": (106, 2**17),
    "strategy": (107, 1),
    "literal_compression": (1002, 1),
}


def _load_library() -> ctypes.CDLL:
    name = ctypes.util.find_library("zstd")
    if name is None:
        raise ImportError("the system has no libzstd")
    library = ctypes.CDLL(name)
    library.ZSTD_versionString.restype = ctypes.c_char_p
    library.ZSTD_createCCtx.restype = ctypes.c_void_p
    library.ZSTD_freeCCtx.argtypes = [ctypes.c_void_p]
    library.ZSTD_isError.argtypes = [ctypes.c_size_t]
    library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    library.ZSTD_compressBound.restype = ctypes.c_size_t
    library.ZSTD_CCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.ZSTD_CCtx_setParameter.restype = ctypes.c_size_t
    buffer = (ctypes.c_void_p, ctypes.c_size_t)
    library.ZSTD_compress2.argtypes = [ctypes.c_void_p, *buffer, *buffer]
    library.ZSTD_compress2.restype = ctypes.c_size_t
    return library


class ZstdHuffman(SlicePeer):
    """Zstandard with match search suppressed, so that every code is a Huffman-coded literal.

    The system's libzstd encodes; the copy in the Python package decodes.
    """

    name = "zstd-huffman"
    distribution = "zstandard"
    on_codes = True
    note = "codes to bytes and back, without quantizing"

    def __init__(self) -> None:
        """Load the library and create the contexts, which are reused for all slices."""
        super().__init__()
        self._library = _load_library()
        self._context = self._library.ZSTD_createCCtx()
        weakref.finalize(self, self._library.ZSTD_freeCCtx, self._context)
        for name, (number, value) in _PARAMETERS.items():
            answer = self._library.ZSTD_CCtx_setParameter(self._context, number, value)
            if self._library.ZSTD_isError(answer):
                raise ImportError(f"the system's libzstd does not know the parameter {name}")
        self._decompressor = zstandard.ZstdDecompressor()

    def options(self) -> dict[str, Any]:
        """Return the encoder's version and the parameters that suppress matches."""
        version = self._library.ZSTD_versionString().decode()
        return {"libzstd": version, **{name: value for name, (_, value) in _PARAMETERS.items()}}

    def encode(self, x: torch.Tensor, error_bound: float) -> bytes:
        """Compress the codes."""
        del error_bound
        frame = np.empty(self._library.ZSTD_compressBound(x.nbytes), dtype=np.uint8)
        frame_nbytes = self._library.ZSTD_compress2(
            self._context, frame.ctypes.data, frame.nbytes, x.data_ptr(), x.nbytes
        )
        if self._library.ZSTD_isError(frame_nbytes):
            raise RuntimeError("libzstd could not compress the codes")
        return frame[:frame_nbytes].tobytes()

    def decode(self, encoded: bytes, out: torch.Tensor) -> torch.Tensor:
        """Decompress directly into ``out``."""
        with self._decompressor.stream_reader(encoded) as reader:
            reader.readinto(out.view(torch.uint8).numpy())
        return out

    def nbytes(self, encoded: bytes) -> int:
        """Return the size of the frame."""
        return len(encoded)
