"""Dictionary encoders: codes as byte planes, compressed by lz4 or zstd in independent frames.

```
offset size field
     0    4 low           int32, subtracted from every code
     4    1 code_nbytes   1, 2 or 4: bytes per code
     5    3 zero
     8      sizes         u32[num_frames], bytes of each frame; padded to 8 bytes
            frames        byte after byte; padded to 8 bytes
```

A frame holds 2**20 codes, the last one perhaps fewer: first the lowest byte of every code, then the next.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.errors import BackendUnavailableError, CorruptDataError, SpecError
from tersor.kernels.batch.encoders.encoder import Encoder
from tersor.kernels.runtime import threads
from tersor.raw_bytes import padded, read_struct

HEADER: Final = struct.Struct("<iB3x")
FRAME_CODES: Final = 1 << 20


def _module(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise BackendUnavailableError(
            f"this codec needs the package {package!r}, which cannot be imported; install it, "
            "or choose codec 'huffman'"
        ) from error


class FrameEncoder(Encoder):
    """Common part of the lz4 and zstd encoders."""

    @property
    def form(self) -> str:
        """See ``Encoder.form``."""
        return "frames"

    @abstractmethod
    def encode_frame(self, data: bytes) -> bytes:
        """Compress one frame."""

    @abstractmethod
    def decode_frame(self, data: bytes, nbytes: int) -> bytes:
        """Decompress one frame to ``nbytes`` bytes; raise ``CorruptDataError`` if it holds anything else."""

    def encode(self, codes: torch.Tensor, lead: int = 0) -> torch.Tensor:
        """See ``Encoder.encode``."""
        values = codes.cpu().numpy()
        low, code_nbytes = _narrowest(values)
        starts = range(0, values.size, FRAME_CODES)
        frames = threads.run(
            lambda part: [
                self.encode_frame(_planes(values[s : s + FRAME_CODES], low, code_nbytes))
                for s in part
            ],
            [(starts[a:b],) for a, b in threads.split(len(starts), 4 * FRAME_CODES)],
        )
        flat = [frame for part in frames for frame in part]
        sizes = np.array([len(frame) for frame in flat], dtype=np.uint32).tobytes()
        head = HEADER.pack(low, code_nbytes) + sizes.ljust(padded(len(sizes)), b"\0")
        tail = bytes(-sum(map(len, flat)) % 8)
        parts = [np.frombuffer(part, np.uint8) for part in (bytes(lead), head, *flat, tail)]
        return torch.from_numpy(np.concatenate(parts)).to(codes.device)

    def decode(self, body: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, int]:
        """See ``Encoder.decode``."""
        data = body.cpu().numpy()
        num_frames = ceil_div(num_codes, FRAME_CODES)
        start = HEADER.size + padded(4 * num_frames)
        if data.size < start:
            raise CorruptDataError("compressed codes are truncated")
        low, code_nbytes = read_struct(HEADER, body, slice(5, 8))
        sizes = data[HEADER.size : HEADER.size + 4 * num_frames].view(np.uint32)
        ends = start + np.cumsum(sizes, dtype=np.int64)
        total = int(ends[-1]) if num_frames else start
        if code_nbytes not in (1, 2, 4) or data.size < padded(total):
            raise CorruptDataError("compressed codes have impossible sizes")
        codes = np.empty(num_codes, dtype=np.uint32)

        def decode_frames(first: int, last: int) -> None:
            for k in range(first, last):
                part = codes[k * FRAME_CODES : (k + 1) * FRAME_CODES]
                frame = data[int(ends[k]) - int(sizes[k]) : int(ends[k])].tobytes()
                plain = self.decode_frame(frame, part.size * code_nbytes)
                part[:] = _unplanes(plain, code_nbytes)
                part += np.uint32(low & 0xFFFFFFFF)

        threads.run(decode_frames, threads.split(num_frames, 4 * FRAME_CODES))
        return torch.from_numpy(codes.view(np.int32)).to(body.device), padded(total)

    def max_nbytes(self, num_codes: int) -> int:
        """See ``Encoder.max_nbytes``; both formats expand incompressible data by under 1 %."""
        num_frames = ceil_div(num_codes, FRAME_CODES)
        return HEADER.size + padded(4 * num_frames) + padded(5 * num_codes + 512 * num_frames)


def _narrowest(values: Any) -> tuple[int, int]:
    """Return the smallest code, and the bytes per code that codes relative to it need."""
    if values.size == 0:
        return 0, 1
    parts = threads.split(values.size, 4)
    ends = threads.run(lambda s, e: (values[s:e].min(), values[s:e].max()), parts)
    low = int(min(end[0] for end in ends))
    span = int(max(end[1] for end in ends)) - low
    return low, 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4


def _planes(codes: Any, low: int, code_nbytes: int) -> bytes:
    """Return the byte planes of the codes minus ``low``, lowest bytes first."""
    narrow = (codes - np.int32(low)).view(np.uint32).astype(f"<u{code_nbytes}")
    planes = narrow.view(np.uint8).reshape(codes.size, -1).T
    data: bytes = np.ascontiguousarray(planes).tobytes()
    return data


def _unplanes(data: bytes, code_nbytes: int) -> Any:
    planes = np.frombuffer(data, dtype=np.uint8).reshape(code_nbytes, -1)
    return np.ascontiguousarray(planes.T).view(f"<u{code_nbytes}").reshape(-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lz4Encoder(FrameEncoder):
    """lz4 blocks."""

    acceleration: int = 1

    def __post_init__(self) -> None:
        """Reject accelerations that lz4 would clip."""
        if type(self.acceleration) is not int or not 1 <= self.acceleration <= 65537:
            raise SpecError(f"acceleration must be from 1 to 65537, not {self.acceleration}")

    def encode_frame(self, data: bytes) -> bytes:
        """See ``FrameEncoder.encode_frame``."""
        block = _module("lz4.block", "lz4")
        frame: bytes = block.compress(
            data, mode="fast", acceleration=self.acceleration, store_size=False
        )
        return frame

    def decode_frame(self, data: bytes, nbytes: int) -> bytes:
        """See ``FrameEncoder.decode_frame``."""
        block = _module("lz4.block", "lz4")
        try:
            plain: bytes = block.decompress(data, uncompressed_size=nbytes)
        except block.LZ4BlockError as error:
            raise CorruptDataError(f"an lz4 frame cannot be decoded: {error}") from error
        if len(plain) != nbytes:
            raise CorruptDataError("an lz4 frame has the wrong size")
        return plain


@dataclass(frozen=True, kw_only=True, slots=True)
class ZstdEncoder(FrameEncoder):
    """zstd frames."""

    level: int = 1

    def __post_init__(self) -> None:
        """Reject levels that zstd does not have."""
        if type(self.level) is not int or not -131072 <= self.level <= 22:
            raise SpecError(f"level must be from -131072 to 22, not {self.level}")

    def encode_frame(self, data: bytes) -> bytes:
        """See ``FrameEncoder.encode_frame``."""
        zstd = _module("zstandard", "zstandard")
        frame: bytes = zstd.ZstdCompressor(level=self.level, write_checksum=False).compress(data)
        return frame

    def decode_frame(self, data: bytes, nbytes: int) -> bytes:
        """See ``FrameEncoder.decode_frame``."""
        zstd = _module("zstandard", "zstandard")
        try:
            # check the size that the frame states first, because the library would allocate that much
            stated = zstd.get_frame_parameters(data).content_size
            if stated != nbytes:
                raise CorruptDataError("a zstd frame has the wrong size")
            plain: bytes = zstd.ZstdDecompressor(max_window_size=1 << 27).decompress(
                data, allow_extra_data=False
            )
        except zstd.ZstdError as error:
            raise CorruptDataError(f"a zstd frame cannot be decoded: {error}") from error
        if len(plain) != nbytes:
            raise CorruptDataError("a zstd frame has the wrong size")
        return plain
