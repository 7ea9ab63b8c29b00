"""Grids in Triton: the same arithmetic as ``quantize.grid.Grid.for_bound``, tensor by tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.quantize.gpu.finite_range import load_range
from tersor.kernels.quantize.grid import F32_LIMITS, F64_LIMITS, NARROW_DTYPES, SHRINK
from tersor.kernels.runtime.gpu.element_types import BF16, F16, F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.recording import working_tensor

_SHRINK = tl.constexpr(SHRINK)
_F32_LARGEST, _F32_SMALLEST = (tl.constexpr(limit) for limit in F32_LIMITS[1:3])
_F64_LARGEST, _F64_SMALLEST = (tl.constexpr(limit) for limit in F64_LIMITS[1:3])
_F16_PRECISION, _F16_FINEST, _F16_STEP_NBITS = map(tl.constexpr, NARROW_DTYPES[torch.float16])
_BF16_PRECISION, _BF16_FINEST, _BF16_STEP_NBITS = map(tl.constexpr, NARROW_DTYPES[torch.bfloat16])


@triton.jit
def is_step(step, TYPE: tl.constexpr):
    """True if the float64 ``step`` can be the step of a grid for values of ``TYPE``."""
    largest: tl.constexpr = _F64_LARGEST if TYPE == F64 else _F32_LARGEST
    smallest: tl.constexpr = _F64_SMALLEST if TYPE == F64 else _F32_SMALLEST
    held = step if TYPE == F64 else step.to(tl.float32).to(tl.float64)
    return (step >= smallest) & (step <= 2 * largest) & (held == step)


@triton.jit
def _at_most(value, TYPE: tl.constexpr):
    """Round a float64 that is not negative down to the compute dtype."""
    if TYPE == F64:
        return value
    else:
        rounded = value.to(tl.float32)
        bits = rounded.to(tl.int32, bitcast=True)
        below = tl.where(rounded.to(tl.float64) > value, bits - 1, bits)
        return below.to(tl.float32, bitcast=True)


@triton.jit
def _exact_step(widest, is_relative, low, high, TYPE: tl.constexpr):
    """Do the same as ``quantize.grid._exact_step``; exponents follow ``math.frexp``."""
    precision: tl.constexpr = _F16_PRECISION if TYPE == F16 else _BF16_PRECISION
    finest: tl.constexpr = _F16_FINEST if TYPE == F16 else _BF16_FINEST
    step_nbits: tl.constexpr = _F16_STEP_NBITS if TYPE == F16 else _BF16_STEP_NBITS
    bits = widest.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 126
    reach = tl.maximum(-low, high) + 0.5 * widest.to(tl.float64)
    reach_exponent = ((reach.to(tl.int64, bitcast=True) >> 52) - 1022).to(tl.int32)
    nbits = tl.where(is_relative, precision + exponent - reach_exponent, step_nbits)
    nbits = tl.minimum(tl.minimum(nbits, precision), exponent - finest)
    num_cut = 24 - tl.maximum(nbits, 1)
    return ((bits >> num_cut) << num_cut).to(tl.float32, bitcast=True)


@triton.jit
def grid_of(bound, is_relative, low, high, TYPE: tl.constexpr):
    """Return step, inverse and checked bound in the compute dtype; the step is 0 if no grid is possible.

    The arguments are float64 scalars or tensors; ``low > high`` means that no value is finite.
    """
    width = high - low
    spread = tl.where(width < float("inf"), bound * width, bound * high - bound * low)
    error_bound = tl.where(is_relative, tl.where(low <= high, spread, 0.0), bound)
    largest: tl.constexpr = _F64_LARGEST if TYPE == F64 else _F32_LARGEST
    smallest: tl.constexpr = _F64_SMALLEST if TYPE == F64 else _F32_SMALLEST
    checked = _at_most(tl.minimum(error_bound, largest), TYPE)
    is_narrow: tl.constexpr = (TYPE == F16) | (TYPE == BF16)
    if is_narrow:
        step = _exact_step(2.0 * checked, is_relative, low, high, TYPE)
    else:
        step = _at_most(2.0 * checked.to(tl.float64) * _SHRINK, TYPE)
    usable = step.to(tl.float64) >= smallest
    step = tl.where(usable, step, 0.0)
    divisor = tl.where(usable, step, 1.0)
    one = divisor * 0.0 + 1.0
    inverse = tl.fdiv(one, divisor) if TYPE == F64 else tl.div_rn(one, divisor)
    return step, inverse, checked


@triton.jit
def find_grid(keys, bounds, k, inside, TYPE: tl.constexpr):
    """Return step, inverse and checked bound of the tensors ``k`` that are ``inside``."""
    low, high = load_range(keys, k, inside, TYPE)
    bound = tl.load(bounds + 2 * k, mask=inside, other=0.0)
    is_relative = tl.load(bounds + 2 * k + 1, mask=inside, other=0.0) > 0
    return grid_of(bound, is_relative, low, high, TYPE)


@triton.jit
def store_grid(grids, k, grid, inside):
    """Store the result of ``find_grid`` for the tensors ``k`` that are ``inside``."""
    step, inverse, checked = grid
    tl.store(grids + 3 * k, step, mask=inside)
    tl.store(grids + 3 * k + 1, inverse, mask=inside)
    tl.store(grids + 3 * k + 2, checked, mask=inside)


@jit_kernel(do_not_specialize=["num_tensors"])
def _grids_kernel(keys, bounds, num_tensors, grids, TYPE: tl.constexpr, LANES: tl.constexpr):
    """One program computes the grids of ``LANES`` tensors."""
    k = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = k < num_tensors
    store_grid(grids, k, find_grid(keys, bounds, k, inside, TYPE), inside)


def grid_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the grids of tensors of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def grid_table(keys: torch.Tensor, bounds: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return step, inverse and checked bound per tensor in the compute dtype, [num_tensors, 3].

    A step of 0 means that no grid can keep the bound.

    Args:
        keys: ranges as ``quantize.gpu.finite_range`` stores them; ignored for absolute bounds.
        bounds: ``runtime.gpu.tiles.bound_table``.
        dtype: dtype of the tensors.
    """
    grids = working_tensor((len(bounds), 3), grid_dtype(dtype), bounds.device)
    _grids_kernel[(ceil_div(len(bounds), 128),)](
        keys, bounds, len(bounds), grids, TYPE=TYPES[dtype], LANES=128
    )
    return grids
