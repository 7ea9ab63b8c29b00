"""Groups scaled by their root mean square in Triton: device functions on a tile of whole groups.

A tile of ``ROWS`` groups is held as [64 * ROWS, 4]: the four values of a thread make one word of symbols.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from tersor.kernels.group.rms import layout
from tersor.kernels.group.rms.reference import ABOVE_HALF, LEAST_EXPONENT
from tersor.kernels.quantize.gpu.values import SHIFT, load_values
from tersor.kernels.runtime.gpu.element_types import F64

GROUP = tl.constexpr(layout.GROUP)
WORDS = tl.constexpr(layout.GROUP // 4)
"""Words of symbols per group."""
LIMIT = tl.constexpr(int(np.float32(layout.LARGEST_MAGNITUDE).view(np.int32)))
"""The bits of the smallest magnitude that makes a value an outlier."""
_LEAST_EXPONENT, _ABOVE_HALF = tl.constexpr(LEAST_EXPONENT), tl.constexpr(ABOVE_HALF)
_SMALLEST_SCALE = tl.constexpr(layout.SMALLEST_SCALE)
_SCALE_SHIFT = tl.constexpr(layout.SCALE_SHIFT)
_MAGIC = tl.constexpr(1.5 * 2.0**23)
"""Adding and subtracting it rounds to the nearest integer, ties to even."""


@triton.jit
def load_scalable(
    address, position, limit, TYPE: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr
):
    """Return values as ``reference.as_scalable`` does, with zeros from ``limit`` on."""
    values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, WHOLE)
    if TYPE == F64:
        single = values.to(tl.float32)
        return tl.where((single == 0) & (values != 0), float("inf"), single)
    else:
        return values


@triton.jit
def is_outlier(values):
    """True where a value has no code, NaN included."""
    return magnitudes_of(values) >= LIMIT


@triton.jit
def _spread(rows, ROWS: tl.constexpr):
    """Broadcast one number per group to [64 * ROWS, 1]."""
    wide = tl.broadcast_to(rows[:, None], [ROWS, WORDS])
    return tl.reshape(wide, [ROWS * WORDS])[:, None]


@triton.jit
def _sum_rows(numbers, ROWS: tl.constexpr):
    return tl.sum(tl.reshape(tl.sum(numbers, axis=1), [ROWS, WORDS]), axis=1)


@triton.jit
def _max_rows(numbers, ROWS: tl.constexpr):
    return tl.max(tl.reshape(tl.max(numbers, axis=1), [ROWS, WORDS]), axis=1)


@triton.jit
def magnitudes_of(values):
    """Return the bits of magnitudes as int32, which sort like the magnitudes."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def without_outliers(values, ROWS: tl.constexpr):
    """Return values with outliers set to 0, the bits of each group's largest magnitude, and the number of outliers."""
    peaks = _max_rows(magnitudes_of(values), ROWS)
    missed = tl.full((), 0, tl.int32)
    if tl.max(peaks, axis=0) >= LIMIT:
        missed = tl.sum(tl.sum(is_outlier(values).to(tl.int32), axis=1), axis=0)
        values = tl.where(is_outlier(values), 0.0, values)
        peaks = _max_rows(magnitudes_of(values), ROWS)
    return values, peaks, missed


@triton.jit
def scales_of(values, peaks, sizes, has_zeros, ROWS: tl.constexpr):
    """Return the scale of each group, float32 [ROWS], as ``reference.rms_quantize`` computes it.

    Args:
        values: float32 [64 * ROWS, 4], without outliers.
        peaks: int32 [ROWS], from ``without_outliers``.
        sizes: int32 [ROWS], the number of values of each group.
        has_zeros: if true, zeros do not count in the mean.
        ROWS: groups of the tile.
    """
    exponent = tl.maximum(peaks >> 23, _LEAST_EXPONENT)
    factor = ((264 - exponent) << 23).to(tl.float32, bitcast=True)
    # the low bits hold the nearest integer
    shifted = tl.abs(values) * _spread(factor, ROWS) + _MAGIC
    whole = shifted.to(tl.int32, bitcast=True) - (SHIFT - 1)
    squares = _sum_rows(whole * whole, ROWS)
    if has_zeros:
        sizes = _sum_rows(tl.minimum(magnitudes_of(values), 1), ROWS)
    count = tl.maximum(sizes, 1).to(tl.float32)
    root = tl.sqrt_rn(tl.div_rn(squares.to(tl.float32), count))
    rounded = ((root.to(tl.int32, bitcast=True) + 0x7FFF) >> _SCALE_SHIFT) << _SCALE_SHIFT
    unit = ((exponent - 10) << 23).to(tl.float32, bitcast=True)
    return tl.maximum(rounded.to(tl.float32, bitcast=True) * unit, _SMALLEST_SCALE)


@triton.jit
def units_of(values, scales, step, ROWS: tl.constexpr):
    """Return magnitudes in units of ``step`` scales of their group."""
    inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), scales * step)
    return tl.abs(values) * _spread(inverse, ROWS)


@triton.jit
def shifted_codes(values, units, has_zeros):
    """Return codes plus ``SHIFT``, int32."""
    if has_zeros:
        units = tl.where(values == 0, 0.0, units + _ABOVE_HALF)
    sign = values.to(tl.int32, bitcast=True) & -0x80000000
    signed = (units.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    return (signed + _MAGIC).to(tl.int32, bitcast=True)


@triton.jit
def stored_scales(scales):
    """Return scales in their stored form, int16."""
    return (scales.to(tl.int32, bitcast=True) >> _SCALE_SHIFT).to(tl.int16)
