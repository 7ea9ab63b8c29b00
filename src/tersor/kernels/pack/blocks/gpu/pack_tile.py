"""Packing of a tile in Triton: quantized, predicted perhaps, measured, and packed into words.

A tile of 1024 codes is work of one warp, which holds them as fours [256, 4], side by side. Eight fours are a block of 32
neighbours, whose fields fill whole words whatever their width is. Neighbouring threads load neighbouring values and store
neighbouring words: with a lane for each block, whose stores met 32 sectors of memory at a time, the L2 cache was the limit
(87 % of what it can do, at 46 % of the memory's speed).
"""

from __future__ import annotations

import triton
import triton.language as tl

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

FOURS = tl.constexpr(_TILE_VALUES // 4)
_BLOCKS = tl.constexpr(_TILE_VALUES // 32)
"""Blocks of 32 fields in a tile."""
_TILE = tl.constexpr(_TILE_VALUES)
_TWO_23, _TWO_23_BITS = tl.constexpr(2.0**23), tl.constexpr(0x4B000000)
_LARGEST_FAST = tl.constexpr((1 << 22) - 1)
"""The largest field that ``quantize_fields`` gets right."""


@triton.jit
def zigzag(codes):
    """Return codes as unsigned fields: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return ((codes << 1) ^ (codes >> 31)).to(tl.uint32, bitcast=True)


@triton.jit
def bit_length(values):
    """Return the number of bits of each uint32, from the exponent of its upper or lower half as a float32."""
    is_large = values >= (1 << 16)
    halves = tl.where(is_large, values >> 16, values)
    # added to 2**23, a half stands in the low bits
    floats = (halves | _TWO_23_BITS).to(tl.float32, bitcast=True) - _TWO_23
    length = (floats.to(tl.int32, bitcast=True) >> 23) - 126
    return tl.maximum(length, 0) + tl.where(is_large, 16, 0)


@triton.jit
def either(a, b):
    """Return the bits set in one of two."""
    return a | b


@triton.jit
def both(a, b):
    """Return the bits set in both."""
    return a & b


@triton.jit
def larger(a, b):
    """Return the larger of two; NaN if one is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def union_of(fields):
    """Return the bits set in any of [fours, 4] fields."""
    return tl.reduce(tl.reduce(fields, 0, either), 0, either)


@triton.jit
def block_unions(fields):
    """Return the bits set in any of the 32 fields of each block of a tile."""
    return tl.reduce(tl.reshape(tl.reduce(fields, 1, either), [_BLOCKS, 8]), 1, either)


@triton.jit
def _later(pieces, distance, NUM: tl.constexpr):
    """Return of each of a block's ``NUM`` pieces the one ``distance`` behind it; of the last ones, the last."""
    place = tl.arange(0, NUM)[None, :] + tl.zeros([_BLOCKS, 1], dtype=tl.int32) + distance
    return tl.gather(pieces, tl.minimum(place, NUM - 1), axis=1)


@triton.jit
def _store_pieces(pieces, nbits, words, NUM: tl.constexpr, WIDE: tl.constexpr):
    """Store ``NUM`` pieces [32, NUM] of ``nbits`` [32] bits each, an even number, as the words of each block.

    A word is stored by the thread that has its first bit. It has up to two words of a piece of at most 64 bits if
    they are ``WIDE``, and one of at most 32. ``words`` [32] are the places of each block's first.
    """
    half, nbits = (nbits // 2)[:, None].to(tl.uint64), nbits[:, None]
    # what comes behind a block's last piece is in no word: the words end where the block ends
    after = _later(pieces, 1, NUM).to(tl.uint64)
    # in two steps, as 64 is no shift
    window = pieces.to(tl.uint64) | ((after << half) << half)
    # two fours of more than 5 bits have all that a word of the first needs, and two pairs of more than 13 bits
    longest: tl.constexpr = 20 if NUM == 8 else 26
    if tl.min(tl.where(nbits > 0, nbits, 64)) <= longest:
        held = 2 * nbits
        for k in tl.static_range(1, 3 if NUM == 8 else 4):
            more = _later(window, 1 << k, NUM)
            window |= tl.where(held < 64, more << (held & 63).to(tl.uint64), 0)
            held *= 2
    begin = tl.arange(0, NUM)[None, :] * nbits
    word = (begin + 31) >> 5
    offset = 32 * word - begin
    places, shift = words[:, None] + word, offset.to(tl.uint64)
    tl.store(places, (window >> shift).to(tl.uint32), mask=offset < nbits)
    if WIDE:
        second = (window >> 32) | ((after >> ((64 - nbits) & 63).to(tl.uint64)) << 32)
        tl.store(places + 1, (second >> shift).to(tl.uint32), mask=offset + 32 < nbits)


@triton.jit
def _store_small(fields, width, words):
    """Store fields of up to 8 bits as ``width`` words per block: a four of them is one piece."""
    shift = tl.arange(0, 4)[None, None, :] * width[:, None, None]
    fours = tl.reduce(tl.reshape(fields, [_BLOCKS, 8, 4]) << shift.to(tl.uint32), 2, either)
    _store_pieces(fours, 4 * width, words, 8, False)


@triton.jit
def _store_medium(fields, width, words):
    """Store fields of up to 16 bits."""
    shift = tl.arange(0, 2)[None, None, None, :] * width[:, None, None, None]
    pairs = tl.reshape(fields, [_BLOCKS, 8, 2, 2]) << shift.to(tl.uint32)
    first, second = tl.split(tl.reduce(pairs, 3, either))
    fours = first.to(tl.uint64) | (second.to(tl.uint64) << (2 * width)[:, None].to(tl.uint64))
    _store_pieces(fours, 4 * width, words, 8, True)


@triton.jit
def _store_any(fields, width, words):
    """Store fields of up to 32 bits: a pair of them is one piece."""
    first, second = tl.split(tl.reshape(fields, [_BLOCKS, 16, 2]))
    pairs = first.to(tl.uint64) | (second.to(tl.uint64) << width[:, None].to(tl.uint64))
    _store_pieces(pairs, 2 * width, words, 16, True)


@triton.jit
def tile_positions(base):
    """Return the positions [256, 4] of the values of a tile."""
    return base + 4 * tl.arange(0, FOURS)[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def load_tile(address, base, limit, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the values of a tile, as fours; 0 from ``limit`` on."""
    position = tile_positions(base)
    if base + _TILE <= limit:
        values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, True)
    else:
        values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, False)
    return values


@triton.jit
def _fast_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of a tile, and whether all are right: no outliers, no codes of more than 22 bits.

    To look at all values together instead of at each saves a third of the instructions.
    """
    values = load_tile(address, base, limit, TYPE, ALIGNED)
    fields, error = quantize_fields(values, grid[0], grid[1], TYPE)
    # over what a thread holds first, which leaves less to ask other threads
    worst = tl.reduce(tl.reduce(error, 0, larger), 0, larger)
    return fields, (worst <= grid[2]) & (union_of(fields) <= _LARGEST_FAST)


@triton.jit
def tile_fields(address, base, limit, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the fields of the 1024 values from ``base`` on; 0 for outliers, and from ``limit`` on."""
    is_fast: tl.constexpr = (TYPE != F64) & (TYPE != I32)
    if is_fast:
        fields, is_right = _fast_fields(address, base, limit, grid, TYPE, ALIGNED)
        if not is_right:
            # loaded again, since to hold them would take 32 registers
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
    """Return the fields of the residuals of a tile; two or three axes predict.

    A part of the tile at a time, as in ``measure_parts``: residuals wait in ``scratch``, which has room for 1024 int32.
    """
    part_values: tl.constexpr = 128
    limit = limit.to(tl.int32)
    # all threads have read the residuals of the tile before this one
    tl.debug_barrier()
    for part in range(0, _TILE, part_values):
        place = part + tl.arange(0, part_values)
        position = (place + base).to(tl.int32)
        residuals, _, _ = residual_codes(address, position, limit, shape, grid, TYPE, DIMS)
        tl.store(scratch + place, residuals)
    tl.debug_barrier()
    return zigzag(load_tile(scratch.to(tl.int64), 0, _TILE, I32, True))


@triton.jit
def measure_parts(
    address, base, limit, shape, grid, TYPE: tl.constexpr, BLOCK: tl.constexpr, DIMS: tl.constexpr
):
    """See ``measure_tile``; for any values.

    A part of the tile at a time: the loads of all values and their neighbours at once would take more
    registers than there are.
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
def measure_tile(
    address, base, limit, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Measure the 1024 values from ``base`` on, or their residuals if two or three axes predict.

    Returns:
        The words that their fields take; how many outliers they have; True only if two of them are finite and
        differ.
    """
    is_fast: tl.constexpr = (TYPE != F64) & (TYPE != I32) & (DIMS == 0)
    if is_fast:
        fields, is_right = _fast_fields(address, base, limit, grid, TYPE, ALIGNED)
        num_words = tl.sum(block_widths(fields, BLOCK), axis=0)
        outliers = tl.full((), 0, tl.int32)
        # a value past the end counts as 0, from which all others may differ
        differs = _do_differ(fields) & (base + _TILE <= limit)
        if not is_right:
            num_words, outliers, differs = measure_parts(
                address, base, limit, shape, grid, TYPE, BLOCK, DIMS
            )
    else:
        num_words, outliers, differs = measure_parts(
            address, base, limit, shape, grid, TYPE, BLOCK, DIMS
        )
    return num_words, outliers, differs


@triton.jit
def _do_differ(fields):
    """True if two fields of a tile differ."""
    return union_of(fields) != tl.reduce(tl.reduce(fields, 0, both), 0, both)


@triton.jit
def block_widths(fields, BLOCK: tl.constexpr):
    """Return the bits per field of each 32 fields, which are also the words that they take."""
    width = bit_length(block_unions(fields))
    if BLOCK == 64:
        pairs = tl.max(tl.reshape(width, [_BLOCKS // 2, 2]), axis=1)
        width = tl.reshape(tl.broadcast_to(pairs[:, None], [_BLOCKS // 2, 2]), [_BLOCKS])
    return width


@triton.jit
def pack_fields(fields, width, words, widths, num_blocks, BLOCK: tl.constexpr):
    """Store the fields of a tile at ``words``, and the widths of its first ``num_blocks`` blocks."""
    place = tl.arange(0, _BLOCKS)
    per_block: tl.constexpr = BLOCK // 32
    block = place // per_block
    is_first = (place % per_block == 0) & (block < num_blocks)
    tl.store(widths + block, width.to(tl.uint8), mask=is_first)
    words += tl.cumsum(width, axis=0) - width
    most = tl.max(width, axis=0)
    if most <= 8:
        _store_small(fields, width, words)
    elif most <= 16:
        _store_medium(fields, width, words)
    else:
        _store_any(fields, width, words)
