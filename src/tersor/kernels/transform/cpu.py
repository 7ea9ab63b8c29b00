"""Hadamard transform in numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit
from tersor.kernels.transform.reference import ORDER

_TILE_ROWS = 64


@njit(nogil=True, cache=True)
def hadamard_rows(values: Any, factor: Any, out: Any, start: int, stop: int) -> None:
    """Transform rows of 32 values ``[start, stop)``; ``out`` may be ``values``.

    Tiles are transposed, so that every level is whole vectors (15 against 38 ms for 64 MiB). A
    level adds and subtracts neighbours and puts sums before differences; five restore the order.
    """
    tile = np.zeros((2, ORDER, _TILE_ROWS), dtype=np.float32)
    half = ORDER // 2
    for first in range(start, stop, _TILE_ROWS):
        last = min(first + _TILE_ROWS, stop)
        for row in range(first, last):
            source = values[row]
            for k in range(ORDER):
                tile[0, k, row - first] = source[k]
        for level in range(5):
            before, after = tile[level & 1], tile[~level & 1]
            for k in range(half):
                left, right = before[2 * k], before[2 * k + 1]
                total, difference = after[k], after[half + k]
                for i in range(_TILE_ROWS):
                    a, b = left[i], right[i]
                    total[i] = a + b
                    difference[i] = a - b
        for row in range(first, last):
            target = out[row]
            for k in range(ORDER):
                target[k] = tile[1, k, row - first] * factor


def hadamard(x: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """See ``reference.hadamard``."""
    values = x.numpy().reshape(-1, ORDER)
    out = np.empty_like(values)
    factor = np.float32(1.0 / ORDER if inverse else 1.0)
    parts = threads.split(len(values), 4 * ORDER)
    threads.run(hadamard_rows, [(values, factor, out, s, e) for s, e in parts])
    return torch.from_numpy(out.reshape(-1))
