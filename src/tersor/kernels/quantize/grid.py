"""The quantization grid: what turns an error bound into integer codes and back.

All numbers are exact in the compute dtype (float32, or float64 for float64 data), so every
backend does the same arithmetic. Derivation: docs/decisions/0003-quantization-grid.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

TILE: Final = 1024
"""Values handled at once: codes of a tile stay in the first-level cache."""

SHRINK: Final = 1.0 - 2.0**-12
"""The step is this much below twice the bound. Data that lies on a grid (images as k/255) would
otherwise sit on ties, where rounding breaks the bound for a quarter of all values; the price is
0.0004 bit per value."""

Range = tuple[float, float]
"""The smallest and the largest finite value of a tensor; low > high if no value is finite."""


class Limits(NamedTuple):
    """What a compute dtype allows.

    A larger bound is cut to ``largest_bound``, a smaller step than ``smallest_step`` has no
    reciprocal, and codes stay within ``radius``.
    """

    compute: type[np.float32 | np.float64]
    largest_bound: float
    smallest_step: float
    radius: int


F32_LIMITS: Final = Limits(np.float32, 2.0**125, 2.0**-124, 2**22 - 1)
F64_LIMITS: Final = Limits(np.float64, 2.0**1021, 2.0**-1020, 2**30)


def limits_of(dtype: torch.dtype) -> Limits:
    """Return the limits of the dtype that ``dtype`` is computed in."""
    return F64_LIMITS if dtype == torch.float64 else F32_LIMITS


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
        limits = limits_of(dtype)
        bound = _at_most(min(error_bound, limits.largest_bound), limits.compute)
        step = _at_most(2.0 * bound * SHRINK, limits.compute)
        if step < limits.smallest_step:
            return None
        inverse = float(limits.compute(1.0) / limits.compute(step))
        return cls(step, inverse, bound, limits.radius)


def is_step(step: float, dtype: torch.dtype) -> bool:
    """True if ``step`` can be the step of a grid for ``dtype``."""
    limits = limits_of(dtype)
    usable = limits.smallest_step <= step <= 2 * limits.largest_bound
    return usable and float(limits.compute(step)) == step


def _at_most(value: float, compute: type[np.float32 | np.float64]) -> float:
    rounded = compute(value)
    if float(rounded) > value:
        rounded = np.nextafter(rounded, compute(0.0))
    return float(rounded)
