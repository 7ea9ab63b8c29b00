"""The quantization grid: the step that follows from an error bound, and its limits.

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
"""Values processed at once, so that the codes of a tile stay in the first-level cache."""

SHRINK: Final = 1.0 - 2.0**-12
"""For float32 and float64 the step is twice the bound times this. Data that lies on a grid (images as k/255) would
otherwise sit on ties, where rounding breaks the bound for a quarter of all values; the cost is
0.0004 bit per value."""

Range = tuple[float, float]
"""The smallest and the largest finite value of a tensor; low > high if no value is finite."""


class Limits(NamedTuple):
    """The limits of a compute dtype.

    Larger bounds are reduced to ``largest_bound``, smaller steps than ``smallest_step`` are rejected
    because of their reciprocal, and the magnitude of codes is at most ``radius``.
    """

    compute: type[np.float32 | np.float64]
    largest_bound: float
    smallest_step: float
    radius: int


F32_LIMITS: Final = Limits(np.float32, 2.0**125, 2.0**-124, 2**22 - 1)
F64_LIMITS: Final = Limits(np.float64, 2.0**1021, 2.0**-1020, 2**30)


def limits_of(dtype: torch.dtype) -> Limits:
    """Return the limits of the compute dtype of ``dtype``."""
    return F64_LIMITS if dtype == torch.float64 else F32_LIMITS


class NarrowDtype(NamedTuple):
    """A dtype to which decoded values are rounded after being computed in float32.

    Attributes:
        precision: significant bits of a value.
        finest: the smallest value above 0 is ``2**finest``.
        step_nbits: significant bits of a step when the range of the values is unknown. One bit (a
            power of two) makes no outliers. Two bits allow steps up to 1.5 times as wide, but make
            outliers of values beyond ``2**(precision - 1)`` bounds: 1024 bounds in float16, where
            such codes take two thirds of the bits, but 128 in bfloat16, where 4.5 % of normally
            distributed values were outliers at a bound of 0.01 sigma.
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
        bound: the largest error a decoded value may have; never above the bound promised.
        radius: largest magnitude of a code; values beyond it are outliers. float32 codes stay below
            2**22, where adding and subtracting 1.5 * 2**23 rounds to the nearest integer, ties to even.
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
        the step is below ``Limits.smallest_step``. For float16 and bfloat16 it is the widest grid whose levels the dtype
        represents exactly, so that rounding to the dtype moves none of them.

        Args:
            error_bound: absolute bound.
            dtype: dtype of the values.
            value_range: range by which a relative bound was resolved. It must be None for an absolute
                bound, even where the range is known, because not every backend computes it.
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
    """Return ``widest``, truncated to so few significant bits that its products with codes are exact.

    A step of ``nbits`` bits is a multiple of ``unit = 2**(exponent - nbits)``, and so are its products
    with codes. The dtype represents those up to ``2**precision * unit``. Beyond that, the values of the
    dtype are multiples of ``2 * unit``, which a one-bit step divides because it equals the unit.
    """
    fraction, exponent = math.frexp(widest)
    nbits = dtype.step_nbits
    if value_range is not None:
        # a value is rounded to a level at most half a step further out
        reach = max(-value_range[0], value_range[1]) + 0.5 * widest
        nbits = dtype.precision + exponent - math.frexp(reach)[1]
    nbits = max(1, min(nbits, dtype.precision, exponent - dtype.finest))
    return math.ldexp(math.floor(math.ldexp(fraction, nbits)), exponent - nbits)


def _at_most(value: float, compute: type[np.float32 | np.float64]) -> float:
    rounded = compute(value)
    if float(rounded) > value:
        rounded = np.nextafter(rounded, compute(0.0))
    return float(rounded)
