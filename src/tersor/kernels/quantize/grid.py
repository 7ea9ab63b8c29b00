"""The quantization grid: what turns an error bound into integer codes and back.

All numbers are exact in the compute dtype (float32, or float64 for float64 data), so every
backend does the same arithmetic. Derivation: docs/decisions/0003-quantization-grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

TILE: Final = 1024
"""Values handled at once: codes of a tile stay in the first-level cache."""

SHRINK: Final = 1.0 - 2.0**-12
"""The step of float32 and float64 is this much below twice the bound. Data that lies on a grid (images as k/255) would
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


class NarrowDtype(NamedTuple):
    """A dtype that decoded values are rounded to after they were computed in float32.

    Attributes:
        precision: significant bits of a value.
        finest: the smallest value above 0 is ``2**finest``.
        step_nbits: significant bits of a step where the range of the values is not known. One, a
            power of two, makes no outliers. Two make steps up to 1.5 times as wide, and outliers
            beyond ``2**(precision - 1)`` bounds: 1024 in float16, where codes take two thirds of its
            bits, but 128 in bfloat16, where they were 4.5 % of normal values at 0.01 sigma.
    """

    precision: int
    finest: int
    step_nbits: int


NARROW_DTYPES: Final = {
    torch.float16: NarrowDtype(precision=11, finest=-24, step_nbits=2),
    torch.bfloat16: NarrowDtype(precision=8, finest=-133, step_nbits=1),
}


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
    def for_bound(
        cls, error_bound: float, dtype: torch.dtype, value_range: Range | None = None
    ) -> Grid | None:
        """Return the widest grid that keeps ``error_bound``, or None if none can.

        None means that the values must be stored exactly: the bound is zero, or so small that
        ``1 / step`` overflows. In float16 and bfloat16 a grid is the widest whose levels the dtype
        holds, so that rounding to it moves none of them.

        Args:
            error_bound: an absolute one.
            dtype: of the values.
            value_range: of the values that a relative bound was resolved by; None for an absolute
                bound, even where the range is known, as not every backend looks for it.
        """
        limits = limits_of(dtype)
        bound = _at_most(min(error_bound, limits.largest_bound), limits.compute)
        if dtype in NARROW_DTYPES:
            step = _exact_step(2.0 * bound, NARROW_DTYPES[dtype], value_range)
        else:
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


def _exact_step(widest: float, dtype: NarrowDtype, value_range: Range | None) -> float:
    """Return ``widest``, cut to as few significant bits as products with codes need to be exact.

    A step of ``nbits`` is a multiple of ``unit = 2**(exponent - nbits)``, and so are its products;
    the dtype holds those up to ``2**precision * unit``. Beyond, its own values are multiples of
    ``2 * unit``: a step of one bit, which is the unit, divides them.
    """
    fraction, exponent = math.frexp(widest)
    nbits = dtype.step_nbits
    if value_range is not None:
        # the level of a value lies at most half a step beyond it
        reach = max(-value_range[0], value_range[1]) + 0.5 * widest
        nbits = dtype.precision + exponent - math.frexp(reach)[1]
    nbits = max(1, min(nbits, dtype.precision, exponent - dtype.finest))
    return math.ldexp(math.floor(math.ldexp(fraction, nbits)), exponent - nbits)


def _at_most(value: float, compute: type[np.float32 | np.float64]) -> float:
    rounded = compute(value)
    if float(rounded) > value:
        rounded = np.nextafter(rounded, compute(0.0))
    return float(rounded)
