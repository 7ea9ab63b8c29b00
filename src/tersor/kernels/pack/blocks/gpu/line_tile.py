"""Tiles of values that predict each other along one line in Triton: measured, and made fields."""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.pack_tile import (
    FOURS,
    block_widths,
    measure_parts,
    tile_positions,
    zigzag,
)
from tersor.kernels.pack.blocks.gpu.plane_tile import line_residuals
from tersor.kernels.predict.gpu import residual_codes
from tersor.kernels.quantize.grid import TILE as _TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import F64, I32

_TILE = tl.constexpr(_TILE_VALUES)


@triton.jit
def _fast_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of a whole tile, whether all are right, and True only if two values differ."""
    residuals, are_right, varies = line_residuals(address, base, limit, grid, TYPE, ALIGNED)
    return zigzag(residuals), are_right, varies


@triton.jit
def _careful_fields(address, base, limit, grid, TYPE: tl.constexpr):
    """Return the fields of a tile; for any values."""
    position = tile_positions(base).to(tl.int32)
    residuals, _, _ = residual_codes(
        address, position, limit.to(tl.int32), (1, 1, 1), grid, TYPE, 1
    )
    return zigzag(residuals)


@triton.jit
def line_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of the residuals of the 1024 values from ``base`` on; 0 from ``limit`` on."""
    fields, is_done = tl.zeros([FOURS, 4], dtype=tl.uint32), base < 0
    if (TYPE != F64) & (TYPE != I32):
        if base + _TILE <= limit:
            fields, is_done, _ = _fast_fields(address, base, limit, grid, TYPE, ALIGNED)
    if not is_done:
        fields = _careful_fields(address, base, limit, grid, TYPE)
    return fields


@triton.jit
def measure_line(
    address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """See ``pack_tile.measure_tile``; of the residuals along one line."""
    num_words, outliers = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    is_done, varies = base < 0, base < 0
    if (TYPE != F64) & (TYPE != I32):
        if base + _TILE <= limit:
            fields, is_done, varies = _fast_fields(address, base, limit, grid, TYPE, ALIGNED)
            num_words = tl.sum(block_widths(fields, BLOCK), axis=0)
    if not is_done:
        num_words, outliers, varies = measure_parts(
            address, base, limit, (1, 1, 1), grid, TYPE, BLOCK, 1
        )
    return num_words, outliers, varies
