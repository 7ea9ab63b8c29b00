"""Counter-based random bits: random access, and the same bits on every machine."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

U64: TypeAlias = npt.NDArray[np.uint64]

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that spreads the values of a counter before ``scrambled``."""
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hashes(seed: int, stream: int, start: int, count: int) -> U64:
    """Return 64 random bits for each of the counters ``start`` to ``start + count``.

    Args:
        seed: any integer.
        stream: 0 to 15; the streams of a seed are independent.
        start: the first counter.
        count: number of counters.

    Example:
        >>> bool((hashes(7, 0, 0, 10)[4:] == hashes(7, 0, 4, 6)).all())
        True
    """
    first = scrambled(np.array([(seed * 16 + stream) % (1 << 64)], dtype=np.uint64))
    bits = np.arange(start, start + count, dtype=np.uint64)
    bits *= GOLDEN
    bits += first
    return scrambled(bits)


def scrambled(x: U64) -> U64:
    """Scramble numbers in place (the finalizer of SplitMix64)."""
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x
