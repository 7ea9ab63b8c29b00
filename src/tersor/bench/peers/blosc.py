"""Blosc2 with bit shuffling on quantized codes."""

from __future__ import annotations

from typing import Any

import blosc2
import numpy as np

from tersor.bench.peers.peer import CodesPeer


class Blosc2(CodesPeer):
    """Bit shuffle, then Zstandard at level 1, one thread."""

    name = "blosc2"
    distribution = "blosc2"

    def options(self) -> dict[str, Any]:
        """Return filter, codec and level."""
        return {"filter": "bitshuffle", "codec": "zstd", "level": 1}

    def compress(self, values: np.ndarray) -> bytes:
        """Compress; the chunk header contains the size of the codes."""
        return bytes(
            blosc2.compress2(
                values,
                codec=blosc2.Codec.ZSTD,
                clevel=1,
                filters=[blosc2.Filter.BITSHUFFLE],
                typesize=values.itemsize,
                nthreads=1,
            )
        )

    def decompress(self, payload: bytes, num_values: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Decompress into a new array."""
        values = np.empty(num_values, dtype=dtype)
        blosc2.decompress2(payload, dst=values, nthreads=1)
        return values
