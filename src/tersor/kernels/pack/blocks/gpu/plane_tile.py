"""Tiles predicted along two or three axes in Triton, for lines whose length is a multiple of 32.

Four neighbours then lie in one line, as do their predictors in each of the adjacent lines. Each of these two or four
lines is quantized once per tile, plus the value before each four; for any other shape, every value takes four or
eight quantizations. Adjacent threads hold adjacent fours, so loads of all lines are coalesced.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.line_tile import LEAST_FAST, NUM_FAST
from tersor.kernels.pack.blocks.gpu.pack_tile import (
    bit_length,
    both,
    either,
    larger,
    load_tile,
    zigzag,
)
from tersor.kernels.quantize.gpu.values import SHIFT, load_values, shifted_codes
from tersor.kernels.quantize.grid import TILE as _TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import I32

_TILE = tl.constexpr(_TILE_VALUES)
_FOURS = tl.constexpr(_TILE_VALUES // 4)
_PART = tl.constexpr(64)
"""Groups of four values that are measured at a time."""
_LONG = tl.constexpr(1 << 15)
"""For lines of this length or more, division by multiplication could be wrong; a tile meets at most two of them."""


@triton.jit
def can_be_planes(base, limit, shape):
    """True if ``plane_fields`` accepts the tile from ``base`` on: it is whole and meets at most two planes."""
    width, height, _ = shape
    is_large = width.to(tl.int64) * (height - 1) >= _TILE
    return (width % 32 == 0) & is_large & (base + _TILE <= limit)


@triton.jit
def _neighbours(base, shape, offset):
    """Return whether values to the left, above and behind exist, for int32 positions ``offset`` in a tile."""
    width, height, depth = shape
    first_row = (base // width).to(tl.int32)
    offset += (base - first_row.to(base.dtype) * width).to(tl.int32)
    # the upper half of ceil(2**32 / width) times a number below 2**16 is the exact quotient
    inverse = 0xFFFFFFFF // width.to(tl.int64) + 1
    row = ((offset.to(tl.int64) * inverse) >> 32).to(tl.int32)
    row = tl.where(width < _LONG, row, (offset >= width).to(tl.int32))
    height_at, depth_at = first_row % height + row, (first_row // height) % depth
    is_next = height_at >= height
    height_at = tl.where(is_next, height_at - height, height_at)
    depth_at = depth_at + is_next.to(tl.int32)
    return offset > row * width, height_at > 0, (depth_at > 0) & (depth_at < depth)


@triton.jit
def _line(
    address, base, back, is_there, has_left, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr
):
    """Return the codes of the values ``back`` positions before those of a tile, where ``is_there``.

    Returns:
        The codes, int32 [256, 4], and the code before each four, [256], with 0 for missing values; the
        largest error among each four and the value before it; the bitwise or of their codes minus
        ``LEAST_FAST``; and True if two of the tile's values differ.
    """
    start = tl.where(is_there, back, 0).to(tl.int64)
    first = base + 4 * tl.arange(0, _FOURS) - start
    values = load_values(
        address, first[:, None] + tl.arange(0, 4)[None, :], limit, 0.0, TYPE, ALIGNED, True
    )
    # positions from the limit on are not loaded
    place = tl.where(has_left & is_there, first - 1, limit)
    before = load_values(address, place, limit, 0.0, TYPE, False, False)
    codes, errors = shifted_codes(values, grid[0], grid[1], TYPE)
    before_codes, before_error = shifted_codes(before, grid[0], grid[1], TYPE)
    worst = larger(tl.reduce(errors, 1, larger), before_error)
    used, common = tl.reduce(codes, 1, either), tl.reduce(codes, 1, both)
    varies = tl.reduce(used, 0, either) != tl.reduce(common, 0, both)
    used = tl.reduce(codes - LEAST_FAST, 1, either) | (before_codes - LEAST_FAST)
    codes = tl.where(is_there[:, None], codes - SHIFT, 0)
    return codes, tl.where(is_there, before_codes - SHIFT, 0), worst, used, varies


@triton.jit
def _differences(codes, before):
    """Return codes [fours, 4] minus their predecessors; ``before`` [fours] precedes the first of each four."""
    fours: tl.constexpr = codes.shape[0]
    even, odd = tl.split(tl.reshape(codes, [fours, 2, 2]))
    c0, c2 = tl.split(even)
    c1, c3 = tl.split(odd)
    pairs = tl.join(tl.join(c0 - before, c2 - c1), tl.join(c1 - c0, c3 - c2))
    return tl.reshape(pairs, [fours, 4])


@triton.jit
def line_residuals(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return what ``plane_residuals`` does, for a whole tile of a tensor with a single line."""
    has_left = base + 4 * tl.arange(0, _FOURS) > 0
    codes, before, worst, used, varies = _line(
        address, base, 0, has_left | (has_left == 0), has_left, limit, grid, TYPE, ALIGNED
    )
    is_right = (worst <= grid[2]) & (used >= 0) & (used < NUM_FAST)
    are_right = tl.sum((~is_right).to(tl.int32), axis=0) == 0
    return _differences(codes, before), are_right, varies


@triton.jit
def plane_residuals(
    address, base, limit, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, DIMS: tl.constexpr
):
    """Return the residuals of a tile that ``can_be_planes`` accepts; not for float64.

    Returns:
        The residuals, int32 [256, 4]; whether all are correct, which fails if a value or a predictor has no
        code or a large one; and a flag that is set only if two values differ.
    """
    width, plane = shape[0], shape[0] * shape[1]
    has_left, has_upper, has_back = _neighbours(base, shape, 4 * tl.arange(0, _FOURS))
    is_there = has_left | (has_left == 0)
    codes, before, worst, used, varies = _line(
        address, base, 0, is_there, has_left, limit, grid, TYPE, ALIGNED
    )
    upper, upper_before, error, bits, _ = _line(
        address, base, width, has_upper, has_left, limit, grid, TYPE, ALIGNED
    )
    codes, before, worst, used = (
        codes - upper,
        before - upper_before,
        larger(worst, error),
        used | bits,
    )
    if DIMS == 3:
        behind, behind_before, error, bits, _ = _line(
            address, base, plane, has_back, has_left, limit, grid, TYPE, ALIGNED
        )
        codes, before = codes - behind, before - behind_before
        worst, used = larger(worst, error), used | bits
        corner, corner_before, error, bits, _ = _line(
            address, base, plane + width, has_back & has_upper, has_left, limit, grid, TYPE, ALIGNED
        )
        codes, before = codes + corner, before + corner_before
        worst, used = larger(worst, error), used | bits
    is_right = (worst <= grid[2]) & (used >= 0) & (used < NUM_FAST)
    are_right = tl.sum((~is_right).to(tl.int32), axis=0) == 0
    return _differences(codes, before), are_right, varies


@triton.jit
def plane_fields(
    address, base, limit, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, DIMS: tl.constexpr
):
    """Return what ``plane_residuals`` does, with residuals as uint32 fields."""
    residuals, are_right, varies = plane_residuals(
        address, base, limit, shape, grid, TYPE, ALIGNED, DIMS
    )
    return zigzag(residuals), are_right, varies


@triton.jit
def _predicting(
    address, offset, back, is_there, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr
):
    """Return the shifted codes of the values ``back`` positions before ``offset``; those of 0 for missing values."""
    place = offset - tl.where(is_there, back, 0)
    values = load_values(address, place, limit, 0.0, TYPE, ALIGNED, True)
    codes, _error = shifted_codes(values, grid[0], tl.where(is_there, grid[1], 0.0), TYPE)
    return codes


@triton.jit
def _between_lines(
    address, offset, has_upper, has_back, limit, shape, grid, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Subtract from codes their prediction from the lines above and behind.

    Args:
        address: address of the tile's first value.
        offset: positions in the tile.
        has_upper: whether the values above exist.
        has_back: whether the values behind exist.
        limit: limit of the positions.
        shape: shape of the tensor.
        grid: step, inverse and checked bound.
        TYPE: type of the values.
        ALIGNED: see ``load_values``.
        DIMS: 2 or 3.

    Returns:
        The differences, correct if all predictors have codes; the shifted codes themselves; and their errors.
    """
    width, plane = shape[0], shape[0] * shape[1]
    values = load_values(address, offset, limit, 0.0, TYPE, ALIGNED, True)
    own, errors = shifted_codes(values, grid[0], grid[1], TYPE)
    # as many codes are added as subtracted, so the shifts cancel
    codes = own - _predicting(address, offset, width, has_upper, limit, grid, TYPE, ALIGNED)
    if DIMS == 3:
        corner = has_back & has_upper
        codes -= _predicting(address, offset, plane, has_back, limit, grid, TYPE, ALIGNED)
        codes += _predicting(address, offset, plane + width, corner, limit, grid, TYPE, ALIGNED)
    return codes, own, errors


@triton.jit
def measure_planes(
    address, base, limit, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Measure the residuals of a tile that ``can_be_planes`` accepts; not for float64.

    It takes part of the tile at a time, to hold few values in registers. Whether predictors have codes is not
    checked: that would be a third of the work, and the tiles that contain them report it.

    Returns:
        The number of words of their fields, provided that all predictors have codes; whether the tile's own
        values have codes that are not too large; and a flag that is set only if two of them differ.
    """
    start = address + base * (TYPE.primitive_bitwidth // 8)
    fours_per_block: tl.constexpr = BLOCK // 4
    width = tl.zeros([_PART // fours_per_block], dtype=tl.int32)
    worst = tl.zeros([_PART], dtype=tl.float32)
    used, common = tl.zeros([_PART], dtype=tl.int32), tl.full([_PART], -1, tl.int32)
    for part in range(0, _TILE, 4 * _PART):
        fours = part + 4 * tl.arange(0, _PART)
        # positions fit 31 bits, and a 64-bit division takes a hundred instructions
        has_left, has_upper, has_back = _neighbours(base.to(tl.int32), shape, fours)
        codes, own, errors = _between_lines(
            start, fours[:, None] + tl.arange(0, 4)[None, :], has_upper[:, None], has_back[:, None],
            limit, shape, grid, TYPE, ALIGNED, DIMS,
        )  # fmt: skip
        # the first value of a line takes itself as predecessor; the result is not used
        before, _own, _errors = _between_lines(
            start, fours - has_left.to(tl.int32), has_upper, has_back, limit, shape, grid, TYPE,
            False, DIMS,
        )  # fmt: skip
        fields = zigzag(_differences(codes, tl.where(has_left, before, 0)))
        unions = tl.reshape(
            tl.reduce(fields, 1, either), [_PART // fours_per_block, fours_per_block]
        )
        width += bit_length(tl.reduce(unions, 1, either))
        worst = larger(worst, tl.reduce(errors, 1, larger))
        used |= tl.reduce(own - LEAST_FAST, 1, either)
        common &= tl.reduce(own - LEAST_FAST, 1, both)
    is_right = (worst <= grid[2]) & (used >= 0) & (used < NUM_FAST)
    varies = tl.reduce(used, 0, either) != tl.reduce(common, 0, both)
    num_words = tl.sum(width, axis=0) * (BLOCK // 32)
    return num_words, tl.sum((~is_right).to(tl.int32), axis=0) == 0, varies


@triton.jit
def by_lanes(fields, scratch):
    """Rearrange fields [256, 4] as [8, 32, 4], the layout of ``load_tile``.

    They pass through ``scratch``, which has room for 1024 int32.
    """
    position = 4 * tl.arange(0, _FOURS)[:, None] + tl.arange(0, 4)[None, :]
    # wait until all threads have read the previous contents
    tl.debug_barrier()
    tl.store(tl.multiple_of(scratch + position, (16, 16)), fields.to(tl.int32, bitcast=True))
    tl.debug_barrier()
    return load_tile(scratch.to(tl.int64), 0, _TILE, I32, True).to(tl.uint32, bitcast=True)
