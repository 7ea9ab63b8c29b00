"""Groups scaled by their root mean square in Triton: device functions on a tile of whole groups.

A tile of ``ROWS`` groups is held as [64 * ROWS, 4]: four values of a thread make one word of symbols.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from tersor.kernels.group.rms import layout
from tersor.kernels.group.rms.reference import LEAST_EXPONENT
from tersor.kernels.quantize.gpu.values import SHIFT, load_values
from tersor.kernels.runtime.gpu.element_types import F64

GROUP = tl.constexpr(layout.GROUP)
WORDS = tl.constexpr(layout.GROUP // 4)
"""Of symbols, per group."""
_LIMIT = tl.constexpr(int(np.float32(layout.LARGEST_MAGNITUDE).view(np.int32)))
_LEAST_EXPONENT = tl.constexpr(LEAST_EXPONENT)
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
    """True where a value has no code; also for NaN."""
    return (values.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= _LIMIT


@triton.jit
def _spread(rows, ROWS: tl.constexpr):
    """Return a number per group as [64 * ROWS, 1]."""
    wide = tl.broadcast_to(rows[:, None], [ROWS, WORDS])
    return tl.reshape(wide, [ROWS * WORDS])[:, None]


@triton.jit
def _sum_rows(numbers, ROWS: tl.constexpr):
    return tl.sum(tl.reshape(tl.sum(numbers, axis=1), [ROWS, WORDS]), axis=1)


@triton.jit
def _max_rows(numbers, ROWS: tl.constexpr):
    return tl.max(tl.reshape(tl.max(numbers, axis=1), [ROWS, WORDS]), axis=1)


@triton.jit
def scales_of(values, sizes, has_zeros, ROWS: tl.constexpr):
    """Return the scale of each group, float32 [ROWS], as ``reference.rms_quantize`` computes it.

    Args:
        values: float32 [64 * ROWS, 4].
        sizes: int32 [ROWS], values of each group.
        has_zeros: whether zeros do not count.
        ROWS: groups.
    """
    magnitude = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    magnitude = tl.where(magnitude < _LIMIT, magnitude, 0)
    exponent = tl.maximum(_max_rows(magnitude, ROWS) >> 23, _LEAST_EXPONENT)
    factor = ((264 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = magnitude.to(tl.float32, bitcast=True) * _spread(factor, ROWS)
    whole = scaled.to(tl.int32) + (magnitude > 0).to(tl.int32)
    squares = _sum_rows(whole * whole, ROWS)
    if has_zeros:
        sizes = _sum_rows((magnitude > 0).to(tl.int32), ROWS)
    count = tl.maximum(sizes, 1).to(tl.float32)
    root = tl.sqrt_rn(tl.div_rn(squares.to(tl.float32), count))
    rounded = ((root.to(tl.int32, bitcast=True) + 0x7FFF) >> _SCALE_SHIFT) << _SCALE_SHIFT
    unit = ((exponent - 10) << 23).to(tl.float32, bitcast=True)
    return tl.maximum(rounded.to(tl.float32, bitcast=True) * unit, _SMALLEST_SCALE)


@triton.jit
def units_of(values, scales, step, ROWS: tl.constexpr):
    """Return magnitudes in steps of their group; 0 for outliers."""
    inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), scales * step)
    return tl.where(is_outlier(values), 0.0, tl.abs(values)) * _spread(inverse, ROWS)


@triton.jit
def symbols_of(values, units, has_zeros, TOP: tl.constexpr):
    """Return symbols, int32."""
    shifted = units + _MAGIC
    code = shifted.to(tl.int32, bitcast=True) - SHIFT
    if has_zeros:
        # rounded up
        code += (shifted - _MAGIC < units).to(tl.int32)
        code = tl.maximum(code, 1)
        code = tl.where((values == 0) | is_outlier(values), 0, code)
    code = tl.minimum(code, TOP)
    return TOP + tl.where(values < 0, -code, code)


@triton.jit
def stored_scales(scales):
    """Return scales as they are stored, int16."""
    return (scales.to(tl.int32, bitcast=True) >> _SCALE_SHIFT).to(tl.int16)
