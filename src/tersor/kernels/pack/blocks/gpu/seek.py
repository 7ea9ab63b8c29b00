"""Random access to the codes of a packed body in Triton, four neighbours at a time.

An index has two bytes per block: the start of its words relative to those of its tile, and the width of its
fields. Building the index checks the body; codes are then read without further checks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.pack.blocks.gpu.tile import TILE, load_pair, open_tile, starts_of, unzigzag

_WIDTH_NBITS = tl.constexpr(6)
_WIDTH_MASK = tl.constexpr((1 << 6) - 1)


@triton.jit
def index_tile(
    body, body_nbytes, count, local, num_tiles, index, status, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the index entries of tile ``local``; ``index`` points to the entries of its tensor.

    Sets ``status`` if the tile is malformed; no code of the body may be read then.
    """
    blocks: tl.constexpr = TILE // BLOCK
    _words, widths, num_blocks, good = open_tile(body, body_nbytes, count, local, num_tiles, BLOCK)
    if not good:
        tl.atomic_or(status, 1)
    b = tl.arange(0, blocks)
    width = tl.load(widths + b, mask=(b < num_blocks) & good, other=0).to(tl.int32)
    block_words = width * (BLOCK // 32)
    start = tl.cumsum(block_words, axis=0) - block_words
    # the last block of a tile starts before word 1024, so both numbers fit 16 bits
    tl.store(index + local * blocks + b, ((start << _WIDTH_NBITS) | width).to(tl.int16))


@triton.jit
def _find(body, index, place, BLOCK: tl.constexpr):
    """Return the field widths at uint32 positions ``place``, and the first words of their blocks."""
    entry = tl.load(index + place // BLOCK).to(tl.int32) & 0xFFFF
    first = tl.load(body.to(tl.pointer_type(tl.uint32)) + place // TILE)
    return entry & _WIDTH_MASK, first + (entry >> _WIDTH_NBITS).to(tl.uint32)


@triton.jit
def _window(words, first, bit):
    """Return the 32 bits from ``bit`` on, counted from word ``first``."""
    pair = load_pair(words, first + (bit >> 5).to(tl.uint32))
    return (pair >> (bit & 31).to(tl.uint64)).to(tl.uint32)


@triton.jit
def _code_at(words, width, first, number):
    """Return code ``number`` of blocks that start at word ``first``, of any width."""
    mask = tl.where(width >= 32, -1, (1 << (width & 31)) - 1).to(tl.uint32, bitcast=True)
    return unzigzag(_window(words, first, number * width) & mask)


@triton.jit
def _small_code(window, width, k):
    """Return code ``k`` of a window, of up to 8 bits."""
    return unzigzag((window >> (k * width).to(tl.uint32)) & ((1 << width) - 1).to(tl.uint32))


@triton.jit
def _whole_fours(body, words, index, place, BLOCK: tl.constexpr):
    """Implement ``codes_at`` for fours that each lie in one block."""
    width, first = _find(body, index, place, BLOCK)
    number = (place % BLOCK).to(tl.int32)
    if tl.max(tl.max(width, axis=0), axis=0) <= 8:
        # two words hold four fields
        window = _window(words, first, number * width)
        c0, c1 = _small_code(window, width, 0), _small_code(window, width, 1)
        c2, c3 = _small_code(window, width, 2), _small_code(window, width, 3)
    else:
        c0 = _code_at(words, width, first, number)
        c1 = _code_at(words, width, first, number + 1)
        c2 = _code_at(words, width, first, number + 2)
        c3 = _code_at(words, width, first, number + 3)
    return c0, c1, c2, c3


@triton.jit
def _split_code(words, here, there, num_here, k: tl.constexpr, BLOCK: tl.constexpr):
    """Return code ``k`` of fours: the first ``num_here`` codes lie in block ``here``, the others start block ``there``."""
    is_here = num_here > k
    width, first = tl.where(is_here, here[0], there[0]), tl.where(is_here, here[1], there[1])
    return _code_at(words, width, first, k - num_here + tl.where(is_here, BLOCK, 0))


@triton.jit
def _small_split_code(here, there, num_here, k: tl.constexpr):
    """Do what ``_split_code`` does for up to 8 bits; each side is a width and the bits from its first code on."""
    is_here = num_here > k
    width, window = tl.where(is_here, here[0], there[0]), tl.where(is_here, here[1], there[1])
    return _small_code(window, width, tl.where(is_here, k, k - num_here))


@triton.jit
def _split_fours(body, words, index, place, last, BLOCK: tl.constexpr):
    """Implement ``codes_at`` for fours that end at ``last``, which may lie in the next block."""
    width, first = _find(body, index, place, BLOCK)
    next_width, next_first = _find(body, index, last, BLOCK)
    num_here = BLOCK - (place % BLOCK).to(tl.int32)
    if tl.max(tl.max(tl.maximum(width, next_width), axis=0), axis=0) <= 8:
        window = _window(words, first, (BLOCK - num_here) * width)
        here, there = (width, window), (next_width, tl.load(words + next_first))
        c0 = _small_code(window, width, 0)
        c1 = _small_split_code(here, there, num_here, 1)
        c2 = _small_split_code(here, there, num_here, 2)
        c3 = _small_split_code(here, there, num_here, 3)
    else:
        ours, others = (width, first), (next_width, next_first)
        c0 = _code_at(words, width, first, BLOCK - num_here)
        c1 = _split_code(words, ours, others, num_here, 1, BLOCK)
        c2 = _split_code(words, ours, others, num_here, 2, BLOCK)
        c3 = _split_code(words, ours, others, num_here, 3, BLOCK)
    return c0, c1, c2, c3


@triton.jit
def codes_at(
    body, count, num_tiles, index, position, SPLIT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the four codes from each ``position`` on, as a tuple of the first, second, third and fourth.

    Args:
        body: a body whose tiles are well formed.
        count: number of codes of the body.
        num_tiles: number of tiles of the body.
        index: the index entries of its blocks.
        position: int32 [rows, fours], below ``count``; codes from ``count`` on are undefined.
        SPLIT: whether positions may be other than multiples of four.
        BLOCK: codes per block.
    """
    _, words_start = starts_of(count, num_tiles, BLOCK)
    words = (body + words_start).to(tl.pointer_type(tl.uint32))
    # an unsigned division by a power of two is a shift
    place = position.to(tl.uint32, bitcast=True)
    if SPLIT:
        last = tl.minimum(place + 3, (count - 1).to(tl.uint32))
        return _split_fours(body, words, index, place, last, BLOCK)
    else:
        return _whole_fours(body, words, index, place, BLOCK)
