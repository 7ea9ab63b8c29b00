"""Packing and unpacking of tiles in Triton; the kernels that use it know where the tiles are.

A tile of 1024 codes is work of one warp, which packs it into a slot of worst-case size. Fields are
merged by eights into whole units there, so that no two threads share a word; the words of the
format are put together from them once it is known where they go.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.bitpack.layout import TAIL_NBYTES
from tersor.kernels.payload.gpu import padded, store_zeros, tile_end
from tersor.kernels.quantize.gpu import (
    dequantize_values,
    load_values,
    quantize_values,
    store_values,
)
from tersor.kernels.quantize.grid import TILE as _TILE

TILE = tl.constexpr(_TILE)
SLOT_NBYTES: Final = 4 * _TILE
"""Room for one tile's units, were every field 32 bits wide."""

_INTERPRETED: Final = triton.knobs.runtime.interpret
# Triton's interpreter takes as long for a small part of a tile as for a large one
PART_VALUES: Final = _TILE if _INTERPRETED else 256
"""Values that a packing program holds in registers at a time; with a whole tile it would spill."""

SCAN_VALUES = tl.constexpr(_TILE if _INTERPRETED else 128)
"""Values of a tile that are looked at once more at a time."""

PACK_RUN: Final = 4
PLACE_RUN: Final = 4
UNPACK_RUN: Final = 4
"""Tiles that one program packs, puts in place, or unpacks."""

_SLOT_NBYTES = tl.constexpr(SLOT_NBYTES)
_TAIL = tl.constexpr(TAIL_NBYTES)


@triton.jit
def zigzag(codes):
    """Return codes as unsigned fields: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return ((codes << 1) ^ (codes >> 31)).to(tl.uint32, bitcast=True)


@triton.jit
def unzigzag(fields):
    """Return the int32 codes of ``zigzag``'s fields."""
    return (fields >> 1).to(tl.int32, bitcast=True) ^ -(fields & 1).to(tl.int32, bitcast=True)


@triton.jit
def bit_length(values):
    """Return the number of bits of each uint32, without the instruction not every device has."""
    length = (values > 0).to(tl.int32)
    for k in tl.static_range(4, -1, -1):
        large = values >= (1 << (1 << k))
        length += tl.where(large, 1 << k, 0)
        values = tl.where(large, values >> (1 << k), values)
    return length


@triton.jit
def _pairs(fields, width):
    """Join two and two of four fields along the last axis, the first one lowest, in 64 bits."""
    blocks: tl.constexpr = fields.shape[0]
    groups: tl.constexpr = fields.shape[1]
    even, odd = tl.split(tl.reshape(fields, [blocks, groups, 2, 2]))
    pairs = even.to(tl.uint64) | (odd.to(tl.uint64) << width[:, None, None].to(tl.uint64))
    return tl.split(pairs)


@triton.jit
def _small_four(fields, width):
    """Join four fields of up to 8 bits along the last axis in 32 bits."""
    blocks: tl.constexpr = fields.shape[0]
    groups: tl.constexpr = fields.shape[1]
    even, odd = tl.split(tl.reshape(fields, [blocks, groups, 2, 2]))
    low, high = tl.split(even | (odd << width[:, None, None].to(tl.uint32)))
    return low | (high << (2 * width)[:, None].to(tl.uint32))


@triton.jit
def _store_wide_units(left, right, width, most, units, place):
    """Store units of four or two fields, for widths above 8."""
    first, second = _pairs(left, width)
    third, fourth = _pairs(right, width)
    if most <= 16:
        nbits = (2 * width)[:, None].to(tl.uint64)
        tl.store(units + 2 * place, first | (second << nbits))
        tl.store(units + 2 * place + 1, third | (fourth << nbits))
    else:
        tl.store(units + 4 * place, first)
        tl.store(units + 4 * place + 1, second)
        tl.store(units + 4 * place + 2, third)
        tl.store(units + 4 * place + 3, fourth)


@triton.jit
def store_units(left, right, units, BLOCK: tl.constexpr):
    """Join the fields of some blocks in units of 64 bits and store these; return the widths.

    Fields come as [blocks, BLOCK / 8, 4]: the first and the second half of each eight, so that a
    thread has eight neighbours. A unit holds as many fields as fit for the widest block: eight up
    to 8 bits, four up to 16, else two. Whole units are stored because the bytes that the format
    wants would be parts of a memory sector, which cost more than they save.
    """
    groups: tl.constexpr = BLOCK // 8
    largest = tl.max(tl.maximum(tl.max(left, axis=2), tl.max(right, axis=2)), axis=1)
    width = bit_length(largest)
    most = tl.max(width, axis=0)
    place = tl.arange(0, left.shape[0])[:, None] * groups + tl.arange(0, groups)[None, :]
    if most <= 8:
        low, high = _small_four(left, width), _small_four(right, width)
        nbits = (4 * width)[:, None].to(tl.uint64)
        tl.store(units + place, low.to(tl.uint64) | (high.to(tl.uint64) << nbits))
    else:
        _store_wide_units(left, right, width, most, units, place)
    return width


@triton.jit
def unit_log2(most):
    """Return how many fields ``store_units`` joins if the widest block has ``most`` bits: 2**it."""
    return tl.where(most <= 8, 3, tl.where(most <= 16, 2, 1))


@triton.jit
def reciprocal(unit_nbits):
    """Return what makes ``bit * reciprocal >> 20`` the number of whole units below any bit."""
    return ((1 << 20) + unit_nbits - 1) // tl.maximum(unit_nbits, 1)


@triton.jit
def most_units(unit_nbits):
    """Return how many units a word touches at most besides the one that its first bit lies in.

    That is one if all blocks of a part are about as wide as the widest, which decided how many
    fields make a unit, and up to 15 for the others.
    """
    # words and units start at multiples of the lowest bit set
    least = tl.minimum(unit_nbits & -unit_nbits, 32)
    more = 1 + (31 - tl.minimum(least, 31)) // tl.maximum(unit_nbits, 1)
    return tl.max(tl.where(unit_nbits > 0, more, 0), axis=0)


@triton.jit
def _unit_above(units, unit, shift, num_units, inside):
    """Return a unit shifted to its place in a word, if it reaches that far."""
    present = inside & (shift < 32) & (unit < num_units)
    return tl.load(units + unit, mask=present, other=0) << (shift & 63).to(tl.uint64)


@triton.jit
def word_of_units(units, index, unit_nbits, inverse, num_units, most, inside):
    """Return word ``index`` of blocks whose units start at ``units``; 0 where not ``inside``.

    ``inverse`` is the ``reciprocal`` of ``unit_nbits``: a division per word would be slow; ``most``
    is ``most_units`` of all blocks.
    """
    bit = 32 * index
    unit = (bit * inverse) >> 20
    skipped = bit - unit * unit_nbits
    here = tl.load(units + unit, mask=inside, other=0) >> (skipped & 63).to(tl.uint64)
    rest = unit_nbits - skipped
    word = here | _unit_above(units, unit + 1, rest, num_units, inside)
    for k in range(2, most + 1):
        shift = rest + (k - 1) * unit_nbits
        word |= _unit_above(units, unit + k, shift, num_units, inside)
    return word.to(tl.uint32)


@triton.jit
def slot_of(slots, tile):
    """Return where the units of a tile lie."""
    return (slots + tile * _SLOT_NBYTES).to(tl.pointer_type(tl.uint64))


@triton.jit
def load_part(
    address, base, limit, KIND: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Return the first and the second half of every eight of ``ROWS`` blocks from ``base`` on.

    What lies from ``limit`` on counts as 0.
    """
    place = tl.arange(0, ROWS)[:, None, None] * BLOCK + tl.arange(0, BLOCK // 8)[None, :, None] * 8
    position = base + place + tl.arange(0, 4)[None, None, :]
    if base + ROWS * BLOCK <= limit:
        left = load_values(address, position, limit, 0.0, KIND, ALIGNED, True)
        right = load_values(address, position + 4, limit, 0.0, KIND, ALIGNED, True)
    else:
        left = load_values(address, position, limit, 0.0, KIND, ALIGNED, False)
        right = load_values(address, position + 4, limit, 0.0, KIND, ALIGNED, False)
    return left, right


@triton.jit
def pack_tile(
    left, right, address, base, limit, grid, slot, widths, KIND: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Quantize and pack one tile, whose first part is loaded, and load the first part of the next.

    Returns that part, the tile's words, its outliers, and whether its codes differ.
    """
    step, inverse, bound = grid
    missed = tl.zeros([ROWS, BLOCK // 8, 4], dtype=tl.int32)
    differing = tl.zeros([ROWS, BLOCK // 8, 4], dtype=tl.int32)
    total = tl.zeros([ROWS], dtype=tl.int32)
    sample = load_values(address, base, limit, 0.0, KIND, False, False)
    one_code, _ = quantize_values(sample, step, inverse, bound, KIND)
    for part in range(0, TILE // BLOCK, ROWS):
        # loading ahead hides the latency, which was most of the time otherwise
        ahead = base + (part + ROWS) * BLOCK
        next_left, next_right = load_part(address, ahead, limit, KIND, ALIGNED, BLOCK, ROWS)
        codes, holds = quantize_values(left, step, inverse, bound, KIND)
        others, hold = quantize_values(right, step, inverse, bound, KIND)
        units = slot + part * (BLOCK // 2)
        width = store_units(zigzag(codes), zigzag(others), units, BLOCK)
        tl.store(widths + part + tl.arange(0, ROWS), width.to(tl.uint8))
        total += width
        missed += (~holds).to(tl.int32) + (~hold).to(tl.int32)
        differing |= (codes ^ one_code) | (others ^ one_code)
        left, right = next_left, next_right
    differs = tl.max((differing != 0).to(tl.int32), axis=None)
    nwords = tl.sum(total, axis=0) * (BLOCK // 32)
    return left, right, nwords, tl.sum(missed, axis=None), differs


@triton.jit
def _place_words(
    words, before, tile, width, slots, BLOCK: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr
):
    """Write the words of a run of blocks, which follow each other, from the units in the slots."""
    blocks: tl.constexpr = RUN * TILE // BLOCK
    parts: tl.constexpr = blocks // ROWS
    widest = tl.max(tl.reshape(width, [parts, ROWS]), axis=1)
    log2 = tl.reshape(tl.broadcast_to(unit_log2(widest)[:, None], [parts, ROWS]), [blocks])
    unit_nbits = width << log2
    inverse = reciprocal(unit_nbits)[:, None]
    num_words = width * (BLOCK // 32)
    start = tl.cumsum(num_words, axis=0) - num_words
    num_units = BLOCK >> log2
    b = tl.arange(0, blocks)
    units_start = b // ROWS * (ROWS * BLOCK // 2) + b % ROWS * num_units
    units = slot_of(slots, tile) + units_start[:, None]
    target = words + before + start[:, None]
    most = most_units(unit_nbits)
    for first in range(0, tl.max(num_words, axis=0), 8):
        index = first + tl.arange(0, 8)[None, :]
        inside = index < num_words[:, None]
        word = word_of_units(
            units, index, unit_nbits[:, None], inverse, num_units[:, None], most, inside
        )
        tl.store(target + index, word, mask=inside)


@triton.jit
def place_tiles(
    body, count, tile, stop, first, last, ends, slots, widths, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Put offsets, widths and words of tiles ``[tile, stop)`` into a packed body.

    The body has ``count`` codes in tiles ``[first, last)``; ``ends`` is the running sum over the
    words of all tiles, and there are at most ``RUN`` to put.
    """
    blocks: tl.constexpr = TILE // BLOCK
    num_tiles, num_blocks = last - first, (count + BLOCK - 1) // BLOCK
    widths_start = padded(4 * (num_tiles + 1))
    words_start = widths_start + padded(num_blocks)
    origin = tile_end(ends, first)
    j = tile + tl.arange(0, RUN)
    before = tl.load(ends + j - 1, mask=(j > 0) & (j < stop), other=0) - origin
    offsets = body.to(tl.pointer_type(tl.int32))
    tl.store(offsets + (j - first), before.to(tl.int32), mask=j < stop)
    b = (tile - first) * blocks + tl.arange(0, RUN * blocks)
    width = tl.load(widths + first * blocks + b, mask=b < num_blocks, other=0)
    tl.store(body + widths_start + b, width, mask=b < num_blocks)
    words = (body + words_start).to(tl.pointer_type(tl.uint32))
    run_before = tile_end(ends, tile) - origin
    _place_words(words, run_before, tile, width.to(tl.int32), slots, BLOCK, ROWS, RUN)
    if stop == last:
        total = tile_end(ends, last) - origin
        tl.store(offsets + num_tiles, total.to(tl.int32))
        offsets_end = 4 * (num_tiles + 1)
        store_zeros(body + offsets_end, widths_start - offsets_end, 8)
        store_zeros(body + widths_start + num_blocks, padded(num_blocks) - num_blocks, 8)
        store_zeros(body + words_start + 4 * total, padded(4 * total) - 4 * total + _TAIL, 32)


@triton.jit
def _load_pair(words, place):
    """Return the word at ``place`` and the one after it as one uint64."""
    low = tl.load(words + place).to(tl.uint64)
    return low | (tl.load(words + place + 1).to(tl.uint64) << 32)


@triton.jit
def unpack_up_to_8(words, width, start, BLOCK: tl.constexpr):
    """Return uint32 fields [blocks, BLOCK] of up to 8 bits each from word ``start[b]`` on.

    They are read by fours: two words hold them wherever they begin.
    """
    bit = tl.arange(0, BLOCK // 4)[None, :] * (4 * width)[:, None]
    pair = _load_pair(words, start[:, None] + (bit >> 5))
    window = (pair >> (bit & 31).to(tl.uint64)).to(tl.uint32)
    shift = tl.arange(0, 4)[None, None, :] * width[:, None, None]
    mask = ((1 << width) - 1).to(tl.uint32)
    fields = (window[:, :, None] >> shift.to(tl.uint32)) & mask[:, None, None]
    return tl.reshape(fields, [width.shape[0], BLOCK])


@triton.jit
def unpack_up_to_32(words, width, start, BLOCK: tl.constexpr):
    """Return uint32 fields [blocks, BLOCK] of any width from word ``start[b]`` on.

    Both functions read one word more than the fields take.
    """
    bit = tl.arange(0, BLOCK)[None, :] * width[:, None]
    pair = _load_pair(words, start[:, None] + (bit >> 5))
    mask = tl.where(width >= 32, -1, (1 << (width & 31)) - 1).to(tl.uint32, bitcast=True)
    return (pair >> (bit & 31).to(tl.uint64)).to(tl.uint32) & mask[:, None]


@triton.jit
def _unpack_tile(
    words, widths, num_blocks, usable, step, address, base, count, KIND: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decode one tile whose widths are known to fit; all are taken as 0 if it is not usable."""
    whole = base + TILE <= count
    done = 0
    for part in range(0, TILE // BLOCK, ROWS):
        b = part + tl.arange(0, ROWS)
        width = tl.load(widths + b, mask=(b < num_blocks) & usable, other=0).to(tl.int32)
        block_words = width * (BLOCK // 32)
        start = tl.cumsum(block_words, axis=0) - block_words + done
        if tl.max(width, axis=0) <= 8:
            codes = unzigzag(unpack_up_to_8(words, width, start, BLOCK))
            values = dequantize_values(codes, step, KIND, True)
        else:
            codes = unzigzag(unpack_up_to_32(words, width, start, BLOCK))
            values = dequantize_values(codes, step, KIND, False)
        position = base + b[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        if whole:
            store_values(address, position, values, count, KIND, ALIGNED, True)
        else:
            store_values(address, position, values, count, KIND, ALIGNED, False)
        done += tl.sum(block_words, axis=0)


@triton.jit
def decode_tile(
    body, body_nbytes, count, local, num_tiles, step, address, status, KIND: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decode one tile of a packed body whose fixed parts are known to be present.

    Sets ``status`` if the tile's widths and offsets contradict each other or ``body_nbytes``.
    """
    blocks: tl.constexpr = TILE // BLOCK
    num_blocks = (count + BLOCK - 1) // BLOCK - local * blocks
    widths_start = padded(4 * (num_tiles + 1))
    words_start = widths_start + padded((count + BLOCK - 1) // BLOCK)
    offsets = body.to(tl.pointer_type(tl.uint32)) + local
    first = tl.load(offsets).to(tl.int64)
    nwords = tl.load(offsets + 1).to(tl.int64) - first
    widths = body + widths_start + local * blocks
    b = tl.arange(0, blocks)
    width = tl.load(widths + b, mask=b < num_blocks, other=0).to(tl.int32)
    good = (tl.max(width, axis=0) <= 32) & (tl.sum(width, axis=0) * (BLOCK // 32) == nwords)
    good = good & (4 * (first + nwords) <= body_nbytes - words_start - _TAIL)
    good = good & ((local > 0) | (first == 0))
    body_end = words_start + padded(4 * (first + nwords)) + _TAIL
    good = good & ((local < num_tiles - 1) | (body_end == body_nbytes))
    if not good:
        tl.atomic_or(status, 1)
    words = (body + words_start).to(tl.pointer_type(tl.uint32)) + tl.where(good, first, 0)
    _unpack_tile(
        words, widths, num_blocks, good, step, address, local * TILE, count, KIND, ALIGNED, BLOCK,
        ROWS,
    )  # fmt: skip
