"""Packing of a tile in Triton: quantization, optional prediction, measuring, and packing into words.

One warp handles a tile of 1024 codes. A lane holds 32 neighbours, whose fields fill whole words at
any width, so no lane depends on what another one stores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.staging import IS_STAGED, open_staging, stage, staged
from tersor.kernels.predict.gpu import residual_codes
from tersor.kernels.quantize.gpu.values import (
    LARGEST_CODE,
    SMALLEST_CODE,
    load_values,
    quantize_fields,
    quantize_values,
)
from tersor.kernels.quantize.grid import TILE as _TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import F64, I32

LANES = tl.constexpr(32)
_TILE = tl.constexpr(_TILE_VALUES)
_LARGEST_FAST = tl.constexpr((1 << 22) - 1)
"""The largest field that ``quantize_fields`` computes correctly."""
_COPIED = tl.constexpr(128)
"""Staged words that a warp copies at a time."""


@triton.jit
def zigzag(codes):
    """Return codes as unsigned fields: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return ((codes << 1) ^ (codes >> 31)).to(tl.uint32, bitcast=True)


@triton.jit
def bit_length(values):
    """Return the bit length of each uint32, without an instruction that not every device has."""
    length = (values > 0).to(tl.int32)
    for k in tl.static_range(4, -1, -1):
        large = values >= (1 << (1 << k))
        length += tl.where(large, 1 << k, 0)
        values = tl.where(large, values >> (1 << k), values)
    return length


@triton.jit
def either(a, b):
    """Return the bits set in either number."""
    return a | b


@triton.jit
def both(a, b):
    """Return the bits set in both numbers."""
    return a & b


@triton.jit
def larger(a, b):
    """Return the larger of two numbers, or NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def lane_union(fields):
    """Return the bits set in any of a lane's [8, 32, 4] fields."""
    return tl.reduce(tl.reduce(fields, 2, either), 0, either)


@triton.jit
def _put(pieces, nbits, target, place, held, num_held):
    """Append ``nbits`` bits, at most 32, to each lane's stream, and store a word if one is full.

    Returns the place of the next word in ``target``, the bits pending for it, below 2**32, and their number.
    """
    held |= pieces.to(tl.uint64) << num_held.to(tl.uint64)
    num_held += nbits
    is_full = num_held >= 32
    if IS_STAGED:
        stage(target, place, held.to(tl.uint32), is_full)
    else:
        tl.store(target + place, held.to(tl.uint32), mask=is_full)
    held = tl.where(is_full, held >> 32, held)
    return place + is_full.to(tl.int32), held, num_held - tl.where(is_full, 32, 0)


@triton.jit
def by_fours(pieces):
    """Split eight pieces per lane into the first and the second four, each a 4-tuple."""
    even, odd = tl.split(tl.reshape(tl.permute(pieces, (1, 0)), [LANES, 4, 2]))
    p04, p26 = tl.split(tl.reshape(even, [LANES, 2, 2]))
    p15, p37 = tl.split(tl.reshape(odd, [LANES, 2, 2]))
    p0, p4 = tl.split(p04)
    p1, p5 = tl.split(p15)
    p2, p6 = tl.split(p26)
    p3, p7 = tl.split(p37)
    return (p0, p1, p2, p3), (p4, p5, p6, p7)


@triton.jit
def _store_small(fields, width, target, place):
    """Store each lane's fields of up to 8 bits as ``width`` words."""
    shift = tl.arange(0, 4)[None, None, :] * width[None, :, None]
    first, second = by_fours(tl.reduce(fields << shift.to(tl.uint32), 2, either))
    held = tl.zeros([LANES], dtype=tl.uint64)
    num_held = tl.zeros([LANES], dtype=tl.int32)
    for k in tl.static_range(4):
        place, held, num_held = _put(first[k], 4 * width, target, place, held, num_held)
    for k in tl.static_range(4):
        place, held, num_held = _put(second[k], 4 * width, target, place, held, num_held)


@triton.jit
def _store_medium(fields, width, target, place):
    """Store each lane's fields of up to 16 bits as ``width`` words."""
    shift = tl.arange(0, 2)[None, None, None, :] * width[None, :, None, None]
    pairs = tl.reshape(fields, [8, LANES, 2, 2]) << shift.to(tl.uint32)
    left, right = tl.split(tl.reduce(pairs, 3, either))
    l0, l1 = by_fours(left)
    r0, r1 = by_fours(right)
    held = tl.zeros([LANES], dtype=tl.uint64)
    num_held = tl.zeros([LANES], dtype=tl.int32)
    for k in tl.static_range(4):
        place, held, num_held = _put(l0[k], 2 * width, target, place, held, num_held)
        place, held, num_held = _put(r0[k], 2 * width, target, place, held, num_held)
    for k in tl.static_range(4):
        place, held, num_held = _put(l1[k], 2 * width, target, place, held, num_held)
        place, held, num_held = _put(r1[k], 2 * width, target, place, held, num_held)


@triton.jit
def _put_fours(a, b, c, d, width, target, place, held, num_held):
    """Append 16 fields of up to 32 bits to each lane's stream: four groups of (a, b, c, d)."""
    for k in tl.static_range(4):
        place, held, num_held = _put(a[k], width, target, place, held, num_held)
        place, held, num_held = _put(b[k], width, target, place, held, num_held)
        place, held, num_held = _put(c[k], width, target, place, held, num_held)
        place, held, num_held = _put(d[k], width, target, place, held, num_held)
    return place, held, num_held


@triton.jit
def _store_any(fields, width, target, place):
    """Store each lane's fields of up to 32 bits as ``width`` words."""
    even, odd = tl.split(tl.reshape(fields, [8, LANES, 2, 2]))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    a0, a1 = by_fours(a)
    b0, b1 = by_fours(b)
    c0, c1 = by_fours(c)
    d0, d1 = by_fours(d)
    held = tl.zeros([LANES], dtype=tl.uint64)
    num_held = tl.zeros([LANES], dtype=tl.int32)
    place, held, num_held = _put_fours(a0, b0, c0, d0, width, target, place, held, num_held)
    _put_fours(a1, b1, c1, d1, width, target, place, held, num_held)


@triton.jit
def tile_positions(base):
    """Return the positions [8, 32, 4] of the values of a tile."""
    fours = tl.arange(0, 8)[:, None, None] * 4 + tl.arange(0, LANES)[None, :, None] * 32
    return base + fours + tl.arange(0, 4)[None, None, :]


@triton.jit
def _load_fours(
    address, base, limit, k: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Return the ``k``-th four of each lane, [32, 4]."""
    position = base + 4 * k + tl.arange(0, LANES)[:, None] * 32 + tl.arange(0, 4)[None, :]
    return load_values(address, position, limit, 0.0, TYPE, ALIGNED, WHOLE)


@triton.jit
def _load_lanes(
    address, base, limit, TYPE: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr
):
    """Implement ``load_tile``, one four per lane at a time.

    Loaded at once, neighbouring threads would hold neighbouring fours (Triton 3.6), and exchange fields afterwards.
    """
    f0 = _load_fours(address, base, limit, 0, TYPE, ALIGNED, WHOLE)
    f1 = _load_fours(address, base, limit, 1, TYPE, ALIGNED, WHOLE)
    f2 = _load_fours(address, base, limit, 2, TYPE, ALIGNED, WHOLE)
    f3 = _load_fours(address, base, limit, 3, TYPE, ALIGNED, WHOLE)
    f4 = _load_fours(address, base, limit, 4, TYPE, ALIGNED, WHOLE)
    f5 = _load_fours(address, base, limit, 5, TYPE, ALIGNED, WHOLE)
    f6 = _load_fours(address, base, limit, 6, TYPE, ALIGNED, WHOLE)
    f7 = _load_fours(address, base, limit, 7, TYPE, ALIGNED, WHOLE)
    even = tl.join(tl.join(f0, f4), tl.join(f2, f6))
    odd = tl.join(tl.join(f1, f5), tl.join(f3, f7))
    # behind lane and value come the three bits of a four's number, the highest first
    return tl.reshape(tl.permute(tl.join(even, odd), (2, 3, 4, 0, 1)), [8, LANES, 4])


@triton.jit
def load_tile(address, base, limit, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a tile as [8, 32, 4], where [:, lane] are 32 neighbours in groups of four; 0 from ``limit`` on."""
    if base + _TILE <= limit:
        values = _load_lanes(address, base, limit, TYPE, ALIGNED, True)
    else:
        values = _load_lanes(address, base, limit, TYPE, ALIGNED, False)
    return values


@triton.jit
def _fast_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of a tile, and whether all are correct: no outliers, no fields of more than 22 bits.

    Checking once per lane instead of once per value saves a third of the instructions.
    """
    values = load_tile(address, base, limit, TYPE, ALIGNED)
    fields, error = quantize_fields(values, grid[0], grid[1], TYPE)
    wrong = ~(tl.reduce(tl.reduce(error, 2, larger), 0, larger) <= grid[2])
    wrong |= lane_union(fields) > _LARGEST_FAST
    return fields, tl.sum(wrong.to(tl.int32), axis=0) == 0


@triton.jit
def tile_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of the 1024 values from ``base`` on; 0 for outliers, and from ``limit`` on."""
    is_fast: tl.constexpr = (TYPE != F64) & (TYPE != I32)
    if is_fast:
        fields, is_right = _fast_fields(address, base, limit, grid, TYPE, ALIGNED)
        if not is_right:
            # load again: holding the values would take 32 registers
            values = load_tile(address, base, limit, TYPE, ALIGNED)
            codes, _ = quantize_values(values, grid[0], grid[1], grid[2], TYPE)
            fields = zigzag(codes)
    else:
        values = load_tile(address, base, limit, TYPE, ALIGNED)
        codes, _ = quantize_values(values, grid[0], grid[1], grid[2], TYPE)
        fields = zigzag(codes)
    return fields


@triton.jit
def predicted_fields(
    address, base, limit, shape, grid, scratch, TYPE: tl.constexpr, DIMS: tl.constexpr
):
    """Return the fields of the residuals of a tile, predicted along two or three axes.

    For coalesced loads of values and their predictors, adjacent threads hold neighbouring values. ``scratch``, with
    room for 1024 int32, passes the residuals on to lanes of 32 values each.
    """
    part_values: tl.constexpr = 128
    limit = limit.to(tl.int32)
    # wait until all threads have read the residuals of the previous tile
    tl.debug_barrier()
    for part in range(0, _TILE, part_values):
        place = part + tl.arange(0, part_values)
        position = (place + base).to(tl.int32)
        residuals, _, _ = residual_codes(address, position, limit, shape, grid, TYPE, DIMS)
        tl.store(scratch + place, residuals)
    tl.debug_barrier()
    return zigzag(load_tile(scratch.to(tl.int64), 0, _TILE, I32, True))


@triton.jit
def _measure_parts(
    address, base, limit, shape, grid, TYPE: tl.constexpr, BLOCK: tl.constexpr, DIMS: tl.constexpr
):
    """Implement ``measure_tile`` for any values.

    It takes part of the tile at a time, because loading all values and their neighbours at once would
    need more registers than there are.
    """
    part_values: tl.constexpr = 256 if DIMS < 2 else 128
    num_words = tl.full((), 0, tl.int32)
    missed = tl.zeros([part_values], dtype=tl.int32)
    smallest = tl.full([part_values], LARGEST_CODE, tl.int32)
    largest = tl.full([part_values], SMALLEST_CODE, tl.int32)
    limit = limit.to(tl.int32)
    for part in range(0, _TILE, part_values):
        position = (tl.arange(0, part_values) + part + base).to(tl.int32)
        residuals, codes, holds = residual_codes(address, position, limit, shape, grid, TYPE, DIMS)
        blocks = tl.reshape(zigzag(residuals), [part_values // BLOCK, BLOCK])
        num_words += tl.sum(bit_length(tl.reduce(blocks, 1, either)), axis=0) * (BLOCK // 32)
        is_coded = holds & (position < limit)
        smallest = tl.minimum(smallest, tl.where(is_coded, codes, LARGEST_CODE))
        largest = tl.maximum(largest, tl.where(is_coded, codes, SMALLEST_CODE))
        missed += (~holds).to(tl.int32)
    differs = tl.min(smallest, axis=0) < tl.max(largest, axis=0)
    return num_words, tl.sum(missed, axis=0), differs


@triton.jit
def _load_rows(address, base, limit, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a tile as [32, 32], one lane's values per row; 0 from ``limit`` on.

    Neighbouring threads load neighbouring values, which is faster than ``load_tile`` where no thread needs a whole row.
    """
    position = base + tl.arange(0, LANES)[:, None] * 32 + tl.arange(0, 32)[None, :]
    if base + _TILE <= limit:
        values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, True)
    else:
        values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, False)
    return values


@triton.jit
def _measure_fast(
    address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the number of words of a tile, whether two values differ for certain, and whether both are correct.

    They are unless there are outliers or fields of more than 22 bits; see ``_fast_fields``.
    """
    values = _load_rows(address, base, limit, TYPE, ALIGNED)
    fields, error = quantize_fields(values, grid[0], grid[1], TYPE)
    # in any order, so that each thread reduces its own values first
    largest = tl.reduce(tl.reshape(error, [_TILE], can_reorder=True), 0, larger)
    common = tl.reduce(tl.reshape(fields, [_TILE], can_reorder=True), 0, both)
    unions = tl.reduce(fields, 1, either)
    union = tl.reduce(unions, 0, either)
    # a value past the end counts as 0, from which all others may differ
    differs = (union != common) & (base + _TILE <= limit)
    is_right = (largest <= grid[2]) & (union <= _LARGEST_FAST)
    return tl.sum(widths_of(unions, BLOCK), axis=0), differs, is_right


@triton.jit
def measure_tile(
    address, base, limit, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Measure the 1024 values from ``base`` on, or their residuals if ``DIMS`` axes predict.

    Returns:
        The number of words of their fields; the number of outliers; and a flag that is set only if two values are
        finite and differ.
    """
    is_fast: tl.constexpr = (TYPE != F64) & (TYPE != I32) & (DIMS == 0)
    if is_fast:
        num_words, differs, is_right = _measure_fast(
            address, base, limit, grid, TYPE, ALIGNED, BLOCK
        )
        outliers = tl.full((), 0, tl.int32)
        if not is_right:
            num_words, outliers, differs = _measure_parts(
                address, base, limit, shape, grid, TYPE, BLOCK, DIMS
            )
    else:
        num_words, outliers, differs = _measure_parts(
            address, base, limit, shape, grid, TYPE, BLOCK, DIMS
        )
    return num_words, outliers, differs


@triton.jit
def lane_widths(fields, BLOCK: tl.constexpr):
    """Return the field width of each lane, equal in all lanes of a block.

    It is also the number of words that the 32 fields of a lane take.
    """
    return widths_of(lane_union(fields), BLOCK)


@triton.jit
def widths_of(unions, BLOCK: tl.constexpr):
    """Return what ``lane_widths`` does, from each lane's ``lane_union``."""
    width = bit_length(unions)
    if BLOCK == 64:
        pairs = tl.max(tl.reshape(width, [LANES // 2, 2]), axis=1)
        width = tl.reshape(tl.broadcast_to(pairs[:, None], [LANES // 2, 2]), [LANES])
    return width


@triton.jit
def _store_words(fields, width, target, place):
    """Store each lane's fields as ``width`` words from ``place`` in ``target`` on, which is global or shared memory."""
    most = tl.max(width, axis=0)
    if most <= 8:
        _store_small(fields, width, target, place)
    elif most <= 16:
        _store_medium(fields, width, target, place)
    else:
        _store_any(fields, width, target, place)


@triton.jit
def pack_fields(fields, width, words, widths, num_blocks, BLOCK: tl.constexpr):
    """Store the fields of a tile at ``words``, and the widths of its first ``num_blocks`` blocks."""
    lane = tl.arange(0, LANES)
    lanes_per_block: tl.constexpr = BLOCK // 32
    block = lane // lanes_per_block
    is_first = (lane % lanes_per_block == 0) & (block < num_blocks)
    tl.store(widths + block, width.to(tl.uint8), mask=is_first)
    ends = tl.cumsum(width, axis=0)
    if IS_STAGED:
        staging, num_words = open_staging(), tl.sum(width, axis=0)
        # wait until all threads have read the words of the previous tile
        tl.debug_barrier()
        _store_words(fields, width, staging, ends - width)
        tl.debug_barrier()
        for start in range(0, num_words, _COPIED):
            place = start + tl.arange(0, _COPIED)
            tl.store(words + place, staged(staging, place), mask=place < num_words)
    else:
        _store_words(fields, width, words, ends - width)
