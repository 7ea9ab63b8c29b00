"""LZ4's block format on quantized codes."""

from __future__ import annotations

from typing import Any

import lz4.block
import numpy as np

from tersor.bench.peers.peer import CodesPeer


class Lz4(CodesPeer):
    """LZ4 with default acceleration."""

    name = "lz4"
    distribution = "lz4"

    def compress(self, values: np.ndarray) -> bytes:
        """Compress; the payload begins with the size of the codes."""
        return bytes(lz4.block.compress(values))

    def decompress(self, payload: bytes, num_values: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Decompress into a new buffer."""
        del num_values
        return np.frombuffer(lz4.block.decompress(payload, return_bytearray=True), dtype=dtype)
