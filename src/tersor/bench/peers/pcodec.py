"""pcodec on quantized codes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pcodec import ChunkConfig, standalone

from tersor.bench.peers.peer import CodesPeer

_LEVEL: Final = 8
"""pcodec's default."""


class Pcodec(CodesPeer):
    """pcodec's standalone format at its default level; 8-bit types, off by default, are enabled."""

    name = "pcodec"
    distribution = "pcodec"
    slow = True

    def options(self) -> dict[str, Any]:
        """Return the level."""
        return {"level": _LEVEL}

    def compress(self, values: np.ndarray) -> bytes:
        """Compress; the payload contains the number of codes."""
        config = ChunkConfig(compression_level=_LEVEL, enable_8_bit=True)
        return bytes(standalone.simple_compress(values, config))

    def decompress(self, payload: bytes, num_values: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Decompress into a new array."""
        values = np.empty(num_values, dtype=dtype)
        standalone.simple_decompress_into(payload, values)
        return values
