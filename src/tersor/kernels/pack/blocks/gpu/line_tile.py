"""Tiles predicted along one line in Triton: quantization, measuring, and conversion to fields.

A lane holds 32 neighbours, which include all but one of the codes that predict its own. Each value is therefore
quantized once, and the last value of each lane a second time for the next lane.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.pack_tile import (
    LANES,
    by_fours,
    either,
    lane_union,
    lane_widths,
    larger,
    load_tile,
    tile_positions,
    zigzag,
)
from tersor.kernels.quantize.gpu.values import (
    LARGEST_CODE,
    SHIFT,
    SMALLEST_CODE,
    load_values,
    quantize_values,
    shifted_codes,
)
from tersor.kernels.quantize.grid import TILE as _TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import F64, I32

_TILE = tl.constexpr(_TILE_VALUES)
LEAST_FAST, NUM_FAST = tl.constexpr(SHIFT.value - (1 << 21)), tl.constexpr(1 << 22)
"""The smallest shifted code that the fast path accepts, and how many it accepts."""


@triton.jit
def _before_fours(last, before):
    """Return the code before each group of four in a lane: from the ``last`` codes of fours [8, 32], or ``before`` [32]."""
    lower, upper = by_fours(last)
    even = tl.join(tl.join(before, lower[3]), tl.join(lower[1], upper[1]))
    odd = tl.join(tl.join(lower[0], upper[0]), tl.join(lower[2], upper[2]))
    even, odd = tl.reshape(even, [LANES, 4]), tl.reshape(odd, [LANES, 4])
    return tl.permute(tl.reshape(tl.join(even, odd), [LANES, 8]), (1, 0))


@triton.jit
def differences(codes, before):
    """Return codes [8, 32, 4] minus their predecessors; ``before`` [32] precedes the first code of each lane."""
    even, odd = tl.split(tl.reshape(codes, [8, LANES, 2, 2]))
    c0, c2 = tl.split(even)
    c1, c3 = tl.split(odd)
    first, third = c0 - _before_fours(c3, before), c2 - c1
    pairs = tl.join(tl.join(first, third), tl.join(c1 - c0, c3 - c2))
    return tl.reshape(pairs, [8, LANES, 4])


@triton.jit
def _load_before(address, base, limit, TYPE: tl.constexpr):
    """Return the value before each lane's first; 0 before the tensor's first value and past its end."""
    position = base + tl.arange(0, LANES) * 32 - 1
    # positions from the limit on are not loaded
    place = tl.where(position < 0, limit, position)
    return load_values(address, place, limit, 0.0, TYPE, False, False)


@triton.jit
def _fast_line(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of a tile, and whether all are correct: the tile is whole, with small codes and no outliers."""
    values = load_tile(address, base, limit, TYPE, ALIGNED)
    before = _load_before(address, base, limit, TYPE)
    codes, error = shifted_codes(values, grid[0], grid[1], TYPE)
    before_codes, before_error = shifted_codes(before, grid[0], grid[1], TYPE)
    codes, before_codes = codes - LEAST_FAST, before_codes - LEAST_FAST
    error = tl.reduce(tl.reduce(error, 2, larger), 0, larger)
    used = lane_union(codes) | before_codes
    is_right = (error <= grid[2]) & (before_error <= grid[2]) & (used >= 0) & (used < NUM_FAST)
    fields = zigzag(differences(codes, before_codes))
    return fields, (tl.sum((~is_right).to(tl.int32), axis=0) == 0) & (base + _TILE <= limit)


@triton.jit
def _careful_line(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return fields, codes, whether each value has a code, and whether it is before ``limit``; for any values."""
    values = load_tile(address, base, limit, TYPE, ALIGNED)
    before = _load_before(address, base, limit, TYPE)
    codes, holds = quantize_values(values, grid[0], grid[1], grid[2], TYPE)
    before_codes, _ = quantize_values(before, grid[0], grid[1], grid[2], TYPE)
    inside = tile_positions(base) < limit
    fields = tl.where(inside, zigzag(differences(codes, before_codes)), 0)
    return fields, codes, holds, inside


@triton.jit
def line_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of the residuals of the 1024 values from ``base`` on, and 0 from ``limit`` on."""
    is_fast: tl.constexpr = (TYPE != F64) & (TYPE != I32)
    if is_fast:
        fields, is_right = _fast_line(address, base, limit, grid, TYPE, ALIGNED)
        if not is_right:
            fields, _, _, _ = _careful_line(address, base, limit, grid, TYPE, ALIGNED)
    else:
        fields, _, _, _ = _careful_line(address, base, limit, grid, TYPE, ALIGNED)
    return fields


@triton.jit
def _measure_careful(
    address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Implement ``measure_line`` for any values."""
    fields, codes, holds, inside = _careful_line(address, base, limit, grid, TYPE, ALIGNED)
    smallest = tl.min(tl.where(holds & inside, codes, LARGEST_CODE).reshape([_TILE]), axis=0)
    largest = tl.max(tl.where(holds & inside, codes, SMALLEST_CODE).reshape([_TILE]), axis=0)
    missed = tl.sum((inside & ~holds).to(tl.int32).reshape([_TILE]), axis=0)
    return tl.sum(lane_widths(fields, BLOCK), axis=0), missed, smallest < largest


@triton.jit
def measure_line(
    address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Measure the residuals of a tile along one line; returns what ``pack_tile.measure_tile`` does."""
    is_fast: tl.constexpr = (TYPE != F64) & (TYPE != I32)
    if is_fast:
        fields, is_right = _fast_line(address, base, limit, grid, TYPE, ALIGNED)
        num_words = tl.sum(lane_widths(fields, BLOCK), axis=0)
        outliers = tl.full((), 0, tl.int32)
        # values in all lanes but the first are predicted from values of this tile
        own = tl.where(tl.arange(0, LANES) > 0, lane_union(fields), 0)
        differs = tl.reduce(own, 0, either) != 0
        if not is_right:
            num_words, outliers, differs = _measure_careful(
                address, base, limit, grid, TYPE, ALIGNED, BLOCK
            )
    else:
        num_words, outliers, differs = _measure_careful(
            address, base, limit, grid, TYPE, ALIGNED, BLOCK
        )
    return num_words, outliers, differs
