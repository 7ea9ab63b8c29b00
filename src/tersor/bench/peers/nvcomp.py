"""nvCOMP's lossless coders on codes quantized by us, through NVIDIA's Python package.

All slices go through one call with a configuration prepared in advance, so that nvCOMP neither parses
headers nor waits for the device. It works on torch's current stream. If possible, it uses torch's
allocator, so that its allocations cost the same and are counted in the same way as ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch

from tersor.bench.core.candidate import Candidate
from tersor.bench.core.machine import package_version
from tersor.bench.peers.code_lists import ListQuantizer, QuantizedList
from tersor.errors import BackendUnavailableError

_DISTRIBUTIONS: Final = ("nvidia-nvcomp-cu13", "nvidia-nvcomp-cu12")
_TYPES: Final = {torch.int8: "|i1", torch.int16: "<i2"}
_TYPED: Final = ("LZ4", "Bitcomp", "Cascaded")
"""Algorithms that use the data type, which is passed to them."""


def _library() -> Any:
    """Import nvCOMP lazily, so that this module can be imported without it."""
    nvcomp = import_module("nvidia.nvcomp")
    if not hasattr(nvcomp, "BatchArray"):
        raise ImportError(f"nvCOMP {nvcomp.__version__} is older than 6.0")
    return nvcomp


class _Memory:
    """Device memory from torch, in the form that nvCOMP's allocator interface expects."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = torch.empty(max(1, nbytes), dtype=torch.uint8, device="cuda")
        self.ptr = self._bytes.data_ptr()


def _allocate(nbytes: int, stream: object) -> _Memory:
    del stream
    return _Memory(nbytes)


@cache
def _is_in_torch_memory() -> bool:
    """Make nvCOMP allocate through torch; return whether the installed version supports that."""
    if not torch.cuda.is_available():
        raise BackendUnavailableError("nvCOMP needs a CUDA device")
    nvcomp = _library()
    nvcomp.set_device_allocator(_allocate)
    try:
        codes = torch.zeros(4096, dtype=torch.int8, device="cuda")
        _Coder("LZ4", codes.dtype, _stream()).encode([codes])
        torch.cuda.synchronize()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        nvcomp.set_device_allocator(None)
        return False
    return True


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


@contextmanager
def _as_unavailable(algorithm: str) -> Iterator[None]:
    """Convert nvCOMP's errors to ``BackendUnavailableError``, so that others are still measured."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[:1] or [type(error).__name__]
        raise BackendUnavailableError(f"nvCOMP {algorithm} failed: {first[0]}") from error


class _Coder:
    """One nvCOMP algorithm for codes of one dtype on one stream."""

    def __init__(self, algorithm: str, dtype: torch.dtype, stream: int) -> None:
        options = {"data_type": _TYPES[dtype]} if algorithm in _TYPED else {}
        self._nvcomp, self._stream = _library(), stream
        self._codec = self._nvcomp.Codec(algorithm=algorithm, cuda_stream=stream, **options)
        self._configs: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def _config(self, parts: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        sizes = tuple(part.nbytes for part in parts)
        if sizes not in self._configs:
            encoding = self._codec.compression_config(list(sizes))
            self._configs[sizes] = (encoding, self._codec.decompression_config(encoding))
        return self._configs[sizes]

    def encode(self, parts: Sequence[torch.Tensor]) -> Any:
        """Encode contiguous codes, each part into a separate compressed stream."""
        arrays = self._nvcomp.as_arrays(list(parts), cuda_stream=self._stream)
        return self._codec.encode(arrays, compression_config=self._config(parts)[0])

    def decode(self, batch: Any, parts: Sequence[torch.Tensor]) -> None:
        """Decode into ``parts``, which have the sizes of the encoded parts."""
        arrays = self._nvcomp.as_arrays(list(parts), cuda_stream=self._stream)
        self._codec.decode(batch, out=arrays, decompression_config=self._config(parts)[1])


class NvcompCodes(Candidate):
    """One algorithm on codes alone, for comparison with entropy coders without a quantizer."""

    on_codes = True
    note = "codes to bytes and back, without quantizing"

    def __init__(self, algorithm: str) -> None:
        """Select an algorithm by nvCOMP's name; the first call creates its coder."""
        self.algorithm = algorithm
        self.name = f"nvcomp-{algorithm.lower()}-codes"
        own_version = str(_library().__version__)
        found = (package_version(name) for name in _DISTRIBUTIONS)
        self.version = next((v for v in found if v), own_version)
        self.uses_torch_memory = _is_in_torch_memory()
        self._coders: dict[tuple[torch.dtype, int], _Coder] = {}

    def options(self) -> dict[str, Any]:
        """Return the algorithm."""
        return {"algorithm": self.algorithm}

    def _coder(self, dtype: torch.dtype) -> _Coder:
        key = (dtype, _stream())
        if key not in self._coders:
            self._coders[key] = _Coder(self.algorithm, *key)
        return self._coders[key]

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Any:
        """Encode the codes of all slices.

        Raises:
            BackendUnavailableError: nvCOMP failed.
        """
        del error_bounds
        with _as_unavailable(self.algorithm):
            return self._coder(xs[0].dtype).encode(xs)

    def decode_all(self, encoded: Any, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode into ``outs``; raises like ``encode_all``."""
        with _as_unavailable(self.algorithm):
            self._coder(outs[0].dtype).decode(encoded, outs)
        return outs

    def total_nbytes(self, encoded: Any) -> int:
        """Return the size of all compressed streams."""
        return sum(int(nbytes) for nbytes in encoded.buffer_sizes)


class Nvcomp(NvcompCodes):
    """One algorithm from and to float32: our quantizer, then nvCOMP."""

    on_codes = False
    quantized_by_us = True
    note = "quantized by tersor"

    def __init__(self, algorithm: str) -> None:
        """Select an algorithm by nvCOMP's name."""
        super().__init__(algorithm)
        self.name = f"nvcomp-{algorithm.lower()}"
        self._quantizer = ListQuantizer()

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> tuple[Any, QuantizedList]:
        """Quantize all slices and encode their codes."""
        quantized = self._quantizer.quantize(xs, error_bounds, self.code_dtype)
        encoded = super().encode_all(quantized.parts(), error_bounds)
        return encoded, quantized.without_codes()

    def decode_all(
        self, encoded: tuple[Any, QuantizedList], outs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Decode the codes into new memory, and dequantize them into ``outs``."""
        batch, side = encoded
        quantized = side.with_room()
        super().decode_all(batch, quantized.parts())
        quantized.dequantize(outs)
        return outs

    def total_nbytes(self, encoded: tuple[Any, QuantizedList]) -> int:
        """Return the size of all compressed streams and of the quantization steps."""
        batch, side = encoded
        return super().total_nbytes(batch) + side.side_nbytes
