"""Decode, on the host, finite ranges as a GPU stores them: integers that sort like the values.

A range is two unsigned keys: that of the largest value and that of the negated smallest one. A key
of 0 means that no value is finite.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from tersor.kernels.quantize.grid import Range


def ranges_of_keys(keys: Sequence[int], dtype: torch.dtype) -> list[Range]:
    """Return the range of each tensor of ``dtype`` from its two keys, read as signed integers.

    Example:
        >>> ranges_of_keys([-(2**31) | 0x40000000, 0x407FFFFF], torch.float32)  # 2.0 and -(-1.0)
        [(1.0, 2.0)]
    """
    formats = ("<Q", "<d") if dtype == torch.float64 else ("<I", "<f")
    # not numpy: its calls took 30 us of host time for one tensor, these take 1 us
    values = [_value(key, *formats) for key in keys]
    return [
        (0.0 - negated_low, high)
        for high, negated_low in zip(values[::2], values[1::2], strict=True)
    ]


def _value(key: int, integer: str, floating: str) -> float:
    """Return the value of a key; -0.0 becomes 0.0."""
    if key == 0:
        return float("-inf")
    sign = 1 << (8 * struct.calcsize(integer) - 1)
    # the top bit, set in keys that are negative as signed integers, marks values that are not negative
    bits = key & (sign - 1) if key < 0 else ~key & (2 * sign - 1)
    value: float = struct.unpack(floating, struct.pack(integer, bits))[0]
    return value + 0.0
