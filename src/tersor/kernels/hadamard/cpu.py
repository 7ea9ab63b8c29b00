"""Hadamard transform in numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

from tersor.kernels import threads
from tersor.kernels.hadamard.reference import ORDER


@njit(nogil=True, cache=True)
def _hadamard_kernel(values: Any, factor: Any, out: Any, start: int, stop: int) -> None:
    """Transform rows of 32 values ``[start, stop)``.

    Each level is a loop of constant length over a small array, which LLVM turns into shuffles.
    """
    work = np.empty(ORDER, dtype=np.float32)
    other = np.empty(ORDER, dtype=np.float32)
    for row in range(start, stop):
        source, target = values[row], out[row]
        for i in range(16):
            work[2 * i] = source[2 * i] + source[2 * i + 1]
            work[2 * i + 1] = source[2 * i] - source[2 * i + 1]
        for i in range(8):
            for k in range(2):
                other[4 * i + k] = work[4 * i + k] + work[4 * i + k + 2]
                other[4 * i + k + 2] = work[4 * i + k] - work[4 * i + k + 2]
        for i in range(4):
            for k in range(4):
                work[8 * i + k] = other[8 * i + k] + other[8 * i + k + 4]
                work[8 * i + k + 4] = other[8 * i + k] - other[8 * i + k + 4]
        for i in range(2):
            for k in range(8):
                other[16 * i + k] = work[16 * i + k] + work[16 * i + k + 8]
                other[16 * i + k + 8] = work[16 * i + k] - work[16 * i + k + 8]
        for k in range(16):
            target[k] = (other[k] + other[k + 16]) * factor
            target[k + 16] = (other[k] - other[k + 16]) * factor


def hadamard(x: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """See ``reference.hadamard``."""
    values = x.numpy().reshape(-1, ORDER)
    out = np.empty_like(values)
    factor = np.float32(1.0 / ORDER if inverse else 1.0)
    parts = threads.split(len(values), 4 * ORDER)
    threads.run(_hadamard_kernel, [(values, factor, out, s, e) for s, e in parts])
    return torch.from_numpy(out.reshape(-1))
