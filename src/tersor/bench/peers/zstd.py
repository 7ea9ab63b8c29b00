"""Zstandard on quantized codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard

from tersor.bench.peers.peer import CodesPeer


class Zstd(CodesPeer):
    """Zstandard at level 1."""

    name = "zstd"
    distribution = "zstandard"

    def __init__(self) -> None:
        """Create the contexts, which are reused for all slices."""
        super().__init__()
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    def options(self) -> dict[str, Any]:
        """Return the level."""
        return {"level": 1}

    def compress(self, values: np.ndarray) -> bytes:
        """Compress; the frame header contains the size of the codes."""
        return self._compressor.compress(values.view(np.uint8).data)

    def decompress(self, payload: bytes, num_values: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Decompress into a new array."""
        values = np.empty(num_values, dtype=dtype)
        with self._decompressor.stream_reader(payload) as reader:
            reader.readinto(values.view(np.uint8))
        return values
