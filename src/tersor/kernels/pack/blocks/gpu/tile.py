"""Writing and unpacking tiles of 1024 codes in a packed body, in Triton.

To pack, a tile is measured first. Once the sizes of all tiles before it are known, its fields are computed again
and written to their place.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.pack_tile import lane_widths, pack_fields
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES
from tersor.kernels.quantize.gpu.values import dequantize_values, store_values
from tersor.kernels.quantize.grid import TILE as _TILE
from tersor.kernels.runtime.gpu.tiles import padded, store_zeros

TILE = tl.constexpr(_TILE)
_INTERPRETED: Final = triton.knobs.runtime.interpret
# Triton's interpreter takes as long for a small part of a tile as for a large one
SCAN_VALUES = tl.constexpr(_TILE if _INTERPRETED else 128)
"""Values of a tile that a second scan takes at a time."""

PACK_RUN: Final = 4
UNPACK_RUN: Final = 4
"""Tiles that one program unpacks; ``PACK_RUN`` is the same for packing."""

_TAIL = tl.constexpr(TAIL_NBYTES)


@triton.jit
def unzigzag(fields):
    """Return the int32 codes of zigzag fields."""
    return (fields >> 1).to(tl.int32, bitcast=True) ^ -(fields & 1).to(tl.int32, bitcast=True)


@triton.jit
def put_tile(body, count, local, num_tiles, before, end, fields, BLOCK: tl.constexpr):
    """Write offset, widths and words of tile ``local`` into a packed body of ``count`` codes.

    As measured, the tiles before it take ``before`` words, and ``end`` words with it. If its values have changed
    since, its words could run past the payload: invalid widths, which readers reject, are written instead.
    """
    blocks: tl.constexpr = TILE // BLOCK
    widths_start, words_start = starts_of(count, num_tiles, BLOCK)
    tl.store(body.to(tl.pointer_type(tl.int32)) + local, before.to(tl.int32))
    num_blocks = (count + BLOCK - 1) // BLOCK - local * blocks
    words = (body + words_start).to(tl.pointer_type(tl.uint32)) + before
    widths = body + widths_start + local * blocks
    width = lane_widths(fields, BLOCK)
    if tl.sum(width, axis=0) == end - before:
        pack_fields(fields, width, words, widths, num_blocks, BLOCK)
    else:
        b = tl.arange(0, blocks)
        tl.store(widths + b, tl.full([blocks], 255, tl.uint8), mask=b < num_blocks)


@triton.jit
def starts_of(count, num_tiles, BLOCK: tl.constexpr):
    """Return where the widths and the words of a packed body start."""
    widths_start = padded(4 * (num_tiles + 1))
    return widths_start, widths_start + padded((count + BLOCK - 1) // BLOCK)


@triton.jit
def close_body(body, count, num_tiles, total, BLOCK: tl.constexpr):
    """Write the total number of words and all zero padding of a packed body."""
    widths_start, words_start = starts_of(count, num_tiles, BLOCK)
    num_blocks, offsets_end = (count + BLOCK - 1) // BLOCK, 4 * (num_tiles + 1)
    tl.store(body.to(tl.pointer_type(tl.int32)) + num_tiles, total.to(tl.int32))
    store_zeros(body + offsets_end, widths_start - offsets_end, 8)
    store_zeros(body + widths_start + num_blocks, padded(num_blocks) - num_blocks, 8)
    store_zeros(body + words_start + 4 * total, padded(4 * total) - 4 * total + _TAIL, 32)


@triton.jit
def load_pair(words, place):
    """Return the word at ``place`` and the one after it as one uint64."""
    low = tl.load(words + place).to(tl.uint64)
    return low | (tl.load(words + place + 1).to(tl.uint64) << 32)


@triton.jit
def unpack_up_to_8(words, width, start, BLOCK: tl.constexpr):
    """Return uint32 fields [blocks, BLOCK] of up to 8 bits each, from word ``start[b]`` on.

    They are read four at a time, because two words hold four fields at any bit position.
    """
    bit = tl.arange(0, BLOCK // 4)[None, :] * (4 * width)[:, None]
    pair = load_pair(words, start[:, None] + (bit >> 5))
    window = (pair >> (bit & 31).to(tl.uint64)).to(tl.uint32)
    shift = tl.arange(0, 4)[None, None, :] * width[:, None, None]
    mask = ((1 << width) - 1).to(tl.uint32)
    fields = (window[:, :, None] >> shift.to(tl.uint32)) & mask[:, None, None]
    return tl.reshape(fields, [width.shape[0], BLOCK])


@triton.jit
def unpack_up_to_32(words, width, start, BLOCK: tl.constexpr):
    """Return uint32 fields [blocks, BLOCK] of any width, from word ``start[b]`` on.

    This function and ``unpack_up_to_8`` read one word more than the fields take.
    """
    bit = tl.arange(0, BLOCK)[None, :] * width[:, None]
    pair = load_pair(words, start[:, None] + (bit >> 5))
    mask = tl.where(width >= 32, -1, (1 << (width & 31)) - 1).to(tl.uint32, bitcast=True)
    return (pair >> (bit & 31).to(tl.uint64)).to(tl.uint32) & mask[:, None]


@triton.jit
def _unpack_tile(
    words, widths, num_blocks, usable, step, address, base, count, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decode one tile whose widths are known to fit; all widths count as 0 unless it is ``usable``."""
    whole = base + TILE <= count
    done = 0
    for part in range(0, TILE // BLOCK, ROWS):
        b = part + tl.arange(0, ROWS)
        width = tl.load(widths + b, mask=(b < num_blocks) & usable, other=0).to(tl.int32)
        block_words = width * (BLOCK // 32)
        start = tl.cumsum(block_words, axis=0) - block_words + done
        if tl.max(width, axis=0) <= 8:
            codes = unzigzag(unpack_up_to_8(words, width, start, BLOCK))
            values = dequantize_values(codes, step, TYPE, True)
        else:
            codes = unzigzag(unpack_up_to_32(words, width, start, BLOCK))
            values = dequantize_values(codes, step, TYPE, False)
        position = base + b[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        if whole:
            store_values(address, position, values, count, TYPE, ALIGNED, True)
        else:
            store_values(address, position, values, count, TYPE, ALIGNED, False)
        done += tl.sum(block_words, axis=0)


@triton.jit
def open_tile(body, body_nbytes, count, local, num_tiles, BLOCK: tl.constexpr):
    """Return pointers to the words and widths of a tile, its number of blocks, and whether it is well formed.

    A tile is malformed if its widths and offsets contradict each other or ``body_nbytes``; its words must
    not be read then.
    """
    blocks: tl.constexpr = TILE // BLOCK
    num_blocks = (count + BLOCK - 1) // BLOCK - local * blocks
    widths_start, words_start = starts_of(count, num_tiles, BLOCK)
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
    words = (body + words_start).to(tl.pointer_type(tl.uint32)) + tl.where(good, first, 0)
    return words, widths, num_blocks, good


@triton.jit
def decode_tile(
    body, body_nbytes, count, local, num_tiles, step, address, status, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decode one tile of a packed body whose fixed parts are known to be present.

    Sets ``status`` if the tile is malformed.
    """
    words, widths, num_blocks, good = open_tile(body, body_nbytes, count, local, num_tiles, BLOCK)
    if not good:
        tl.atomic_or(status, 1)
    _unpack_tile(
        words, widths, num_blocks, good, step, address, local * TILE, count, TYPE, ALIGNED, BLOCK,
        ROWS,
    )  # fmt: skip


@triton.jit
def in_order(fours):
    """Join a tuple of the first, second, third and fourth of fours, each [rows, fours], as [rows * fours, 4]."""
    pairs = tl.join(tl.join(fours[0], fours[2]), tl.join(fours[1], fours[3]))
    return tl.reshape(pairs, [fours[0].shape[0] * fours[0].shape[1], 4])


@triton.jit
def _up_to_8(words, place, bit, width):
    """Return four fields of up to 8 bits from ``bit`` on, counted from word ``place``; two words hold them."""
    window = (load_pair(words, place + (bit >> 5)) >> (bit & 31).to(tl.uint64)).to(tl.uint32)
    mask, shift = ((1 << width) - 1).to(tl.uint32), width.to(tl.uint32)
    second, third, fourth = window >> shift, window >> (2 * shift), window >> (3 * shift)
    return window & mask, second & mask, third & mask, fourth & mask


@triton.jit
def _up_to_16(words, place, bit, width):
    """Return what ``_up_to_8`` does, for up to 16 bits; three words hold them."""
    place += bit >> 5
    first, last = load_pair(words, place), tl.load(words + place + 2).to(tl.uint64)
    shift = (bit & 31).to(tl.uint64)
    low, high = (first >> shift).to(tl.uint32), ((first >> 32) | (last << 32)) >> shift
    window = low.to(tl.uint64) | (high << 32)
    mask, shift = ((1 << width) - 1).to(tl.uint32), width.to(tl.uint64)
    second, third = (window >> shift).to(tl.uint32), (window >> (2 * shift)).to(tl.uint32)
    fourth = (window >> (3 * shift)).to(tl.uint32)
    return low & mask, second & mask, third & mask, fourth & mask


@triton.jit
def _up_to_32(words, place, bit, width):
    """Return one field of up to 32 bits from ``bit`` on, counted from word ``place``."""
    mask = tl.where(width >= 32, -1, (1 << (width & 31)) - 1).to(tl.uint32, bitcast=True)
    pair = load_pair(words, place + (bit >> 5))
    return (pair >> (bit & 31).to(tl.uint64)).to(tl.uint32) & mask


@triton.jit
def unpack_fours(words, width, start, most, BLOCK: tl.constexpr):
    """Return the fields of a tile, from word ``start[b]`` on, as a 4-tuple of [blocks, BLOCK // 4]; see ``in_order``.

    Fields have ``width`` bits, at most ``most``. Up to three words more than the fields take are read.
    """
    place, width = start[:, None], width[:, None]
    bit = tl.arange(0, BLOCK // 4)[None, :] * (4 * width)
    if most <= 8:
        f0, f1, f2, f3 = _up_to_8(words, place, bit, width)
    elif most <= 16:
        f0, f1, f2, f3 = _up_to_16(words, place, bit, width)
    else:
        f0 = _up_to_32(words, place, bit, width)
        f1 = _up_to_32(words, place, bit + width, width)
        f2 = _up_to_32(words, place, bit + 2 * width, width)
        f3 = _up_to_32(words, place, bit + 3 * width, width)
    return f0, f1, f2, f3


@triton.jit
def tile_codes(body, body_nbytes, count, local, num_tiles, BLOCK: tl.constexpr):
    """Return the codes of a tile in the form of ``unpack_fours``, 0 if it is malformed, and whether it is well formed.

    A thread holds whole fours; without this, codes that are to be summed would lie one per thread.
    """
    words, widths, num_blocks, good = open_tile(body, body_nbytes, count, local, num_tiles, BLOCK)
    b = tl.arange(0, TILE // BLOCK)
    width = tl.load(widths + b, mask=(b < num_blocks) & good, other=0).to(tl.int32)
    block_words = width * (BLOCK // 32)
    start = tl.cumsum(block_words, axis=0) - block_words
    f0, f1, f2, f3 = unpack_fours(words, width, start, tl.max(width, axis=0), BLOCK)
    return (unzigzag(f0), unzigzag(f1), unzigzag(f2), unzigzag(f3)), good
