"""Finite ranges as a GPU keeps them: integers that sort like the values, read on the host.

A range is two unsigned keys, of the largest value and of the negated smallest one; 0 is no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tersor.kernels.quantize.grid import Range


def ranges_of_keys(keys: Sequence[int], dtype: torch.dtype) -> list[Range]:
    """Return the range of each tensor of ``dtype`` from its two keys, read as signed integers.

    Example:
        >>> ranges_of_keys([-(2**31) | 0x40000000, 0x407FFFFF], torch.float32)  # 2.0 and -(-1.0)
        [(1.0, 2.0)]
    """
    unsigned, floats, nbits = (
        (np.uint64, np.float64, 64) if dtype == torch.float64 else (np.uint32, np.float32, 32)
    )
    held: Any = np.array(keys, dtype=np.int64).astype(unsigned)
    sign: Any = unsigned(1 << (nbits - 1))
    values = np.where(held & sign, held ^ sign, ~held).view(floats).astype(np.float64) + 0.0
    values = np.where(held == 0, -np.inf, values)
    pairs: Any = zip((0.0 - values[1::2]).tolist(), values[::2].tolist(), strict=True)
    return list(pairs)
