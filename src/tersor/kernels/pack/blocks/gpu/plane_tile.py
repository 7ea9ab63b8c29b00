"""Tiles of values that predict each other along two or three axes in Triton, if lines are multiples of 32 long.

A lane's 32 values lie in one line then, and so do those of the two or four lines that predict them: each
line is quantized once per tile, where any other shape quantizes four or eight values for one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.line_tile import LEAST_FAST, NUM_FAST, differences
from tersor.kernels.pack.blocks.gpu.pack_tile import (
    LANES,
    both,
    lane_union,
    larger,
    tile_positions,
    zigzag,
)
from tersor.kernels.quantize.gpu.values import load_values, shifted_codes
from tersor.kernels.quantize.grid import TILE as _TILE_VALUES

_TILE = tl.constexpr(_TILE_VALUES)


@triton.jit
def can_be_planes(base, limit, shape):
    """True if ``plane_fields`` takes the tile from ``base`` on."""
    return (shape[0] % 32 == 0) & (base + _TILE <= limit)


@triton.jit
def _line(
    address, base, back, is_there, has_left, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr
):
    """Return the differences along lines ``back`` values before those of a tile.

    Returns:
        int32 [8, 32, 4], 0 in lanes whose line is not ``is_there``; per lane, whether all of its codes are
        right; and whether two of them differ.
    """
    start = tl.where(is_there, back, 0).to(tl.int64)
    position = tile_positions(base) - start[None, :, None]
    values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, True)
    # what lies at the limit is not loaded
    place = tl.where(has_left, base + tl.arange(0, LANES) * 32 - 1 - start, limit)
    before = load_values(address, place, limit, 0.0, TYPE, False, False)
    codes, error = shifted_codes(values, grid[0], grid[1], TYPE)
    before_codes, before_error = shifted_codes(before, grid[0], grid[1], TYPE)
    codes, before_codes = codes - LEAST_FAST, before_codes - LEAST_FAST
    error = tl.reduce(tl.reduce(error, 2, larger), 0, larger)
    used = lane_union(codes)
    varies = used != tl.reduce(tl.reduce(codes, 2, both), 0, both)
    used |= before_codes
    is_right = (error <= grid[2]) & (before_error <= grid[2]) & (used >= 0) & (used < NUM_FAST)
    return tl.where(is_there[None, :, None], differences(codes, before_codes), 0), is_right, varies


@triton.jit
def plane_fields(
    address, base, limit, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, DIMS: tl.constexpr
):
    """Return the fields of the residuals of a tile that ``can_be_planes``; not for float64.

    Returns:
        uint32 [8, 32, 4]; whether all are right, which they are not if values that predict have no code or a
        large one; and True only if two values differ.
    """
    width, height, depth = shape
    first = (base + tl.arange(0, LANES) * 32).to(tl.int32)
    row = first // width
    has_left, has_upper = first > row * width, row % height > 0
    has_back = (row // height) % depth > 0
    residuals, is_right, varies = _line(
        address, base, 0, first >= 0, has_left, limit, grid, TYPE, ALIGNED
    )
    upper, upper_right, _ = _line(
        address, base, width, has_upper, has_left & has_upper, limit, grid, TYPE, ALIGNED
    )
    residuals, is_right = residuals - upper, is_right & upper_right
    if DIMS == 3:
        plane, has_corner = width * height, has_back & has_upper
        behind, back_right, _ = _line(
            address, base, plane, has_back, has_left & has_back, limit, grid, TYPE, ALIGNED
        )
        corner, corner_right, _ = _line(
            address,
            base,
            plane + width,
            has_corner,
            has_left & has_corner,
            limit,
            grid,
            TYPE,
            ALIGNED,
        )
        residuals, is_right = residuals - behind + corner, is_right & back_right & corner_right
    is_right = tl.sum((~is_right).to(tl.int32), axis=0) == 0
    return zigzag(residuals), is_right, tl.sum(varies.to(tl.int32), axis=0) > 0
