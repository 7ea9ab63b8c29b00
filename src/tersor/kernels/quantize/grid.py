"""The quantization grid: what turns an error bound into integer codes and back.

All numbers are exact in the compute dtype (float32, or float64 for float64 data), so every
backend does the same arithmetic. Derivation: docs/decisions/0003-quantization-grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

_SHRINK: Final = 1.0 - 2.0**-12
"""The step is this much below twice the bound. Data that lies on a grid (images as k/255) would
otherwise sit on ties, where rounding breaks the bound for a quarter of all values; the price is
0.0004 bit per value."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A uniform grid through zero: code ``k`` decodes to ``k * step``.

    Attributes:
        step: distance between levels.
        inverse: ``1 / step``, rounded.
        bound: the error every decoded value is checked against; never above the promise.
        radius: largest code; beyond it a value is an outlier. float32 codes stay below 2**22,
            where adding and subtracting 1.5 * 2**23 rounds to the nearest integer, ties to even.
    """

    step: float
    inverse: float
    bound: float
    radius: int

    @classmethod
    def for_bound(cls, error_bound: float, dtype: torch.dtype) -> Grid | None:
        """Return the widest grid that keeps ``error_bound``, or None if none can.

        None means that the values must be stored exactly: the bound is zero, or so small that
        ``1 / step`` overflows.
        """
        wide = dtype == torch.float64
        compute = np.float64 if wide else np.float32
        limits = np.finfo(compute)
        bound = _at_most(min(error_bound, float(limits.max) / 8), compute)
        step = _at_most(2.0 * bound * _SHRINK, compute)
        if step < float(limits.tiny) * 4:
            return None
        inverse = float(compute(1.0) / compute(step))
        return cls(step, inverse, bound, 2**30 if wide else 2**22 - 1)

    @classmethod
    def from_step(cls, step: float, dtype: torch.dtype) -> Grid | None:
        """Rebuild the part of a grid that decoding needs; None if ``step`` is no grid's step."""
        wide = dtype == torch.float64
        usable = math.isfinite(step) and step > 0 and (wide or float(np.float32(step)) == step)
        return cls(step, 0.0, 0.0, 2**30 if wide else 2**22 - 1) if usable else None


def _at_most(value: float, compute: type[np.float32 | np.float64]) -> float:
    rounded = compute(value)
    if float(rounded) > value:
        rounded = np.nextafter(rounded, compute(0.0))
    return float(rounded)
