"""The index of de-duplicated rows of a list of matrices in Triton. Layout: ``rows/layout.py``.

Rows are numbered twice: by their values, and the distinct ones again by their codes. Here both are
put together, and split into what an index stores; which of its two forms is written is decided
later, when the size of the coded one is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.pack.fields.gpu import pack_words
from tersor.kernels.rows import layout
from tersor.kernels.rows.dedup.gpu.numbers import ROWS_PER_TILE, SCAN_STEP, RowNumbers, look_up
from tersor.kernels.rows.gpu.matrices import MatrixList, index_symbols
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import before_tile, padded, sum_tiles

_SYMBOL_NBITS = tl.constexpr(layout.SYMBOL_NBITS)
_TABLE_NBITS = tl.constexpr(layout.TABLE_NBITS)
_NARROW = tl.constexpr(NARROW)
BIAS = tl.constexpr(1 << 31)
BELOW, ABOVE = tl.constexpr(0), tl.constexpr(1)
"""What is known of the codes of a matrix, int64 [2]: the largest of ``BIAS - code`` and of
``BIAS + code``, so that both start from 0. A value without a code counts as far from all codes."""
MARK_WORDS: Final = ROWS_PER_TILE // 32
"""Words of the marks of a tile of rows."""
FIELDS = tl.constexpr(1024)
"""References that are packed at once."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is known of each matrix once its rows are numbered, on the device.

    Streams are those of the codes of all matrices, then those of the coded indices of all matrices.

    Attributes:
        unique: int64, distinct rows; 0 if the matrix cannot be coded here.
        counts: int64 [2 * num_matrices], symbols of each stream; 0 for an index that is not worth
            coding.
        alphabets: int32 [2 * num_matrices].
        rotations: int32 [2 * num_matrices]: the lowest byte of the smallest code; 0 for an index.
        lows: int32, the smallest code.
    """

    unique: torch.Tensor
    counts: torch.Tensor
    alphabets: torch.Tensor
    rotations: torch.Tensor
    lows: torch.Tensor


@dataclass(frozen=True, slots=True)
class SplitIndex:
    """What the indices of all matrices are made of, besides the symbols.

    Attributes:
        marks: int32 [num_tiles * MARK_WORDS], one bit per row, set if the row is new; a tile of
            ``ROWS_PER_TILE`` rows begins a new word.
        refs: int32 [num_rows], the numbers of those rows of each matrix that are not new.
    """

    marks: torch.Tensor
    refs: torch.Tensor


@triton.jit
def fields_nbytes(count, width):
    """Return the size of packed fields; see ``pack.fields.reference``."""
    return padded((count * width + 7) // 8)


@triton.jit
def ref_nbits(num_distinct):
    """Return the bits that name one of ``num_distinct`` rows; see ``layout.ref_nbits``."""
    nbits = num_distinct * 0
    for k in tl.static_range(31):
        nbits += (((num_distinct - 1) >> k) > 0).to(nbits.dtype)
    return nbits


@triton.jit
def low_nbits(nbits):
    """Return the bits of a reference kept out of the entropy coder; see ``layout.low_nbits``."""
    return tl.maximum(nbits - _SYMBOL_NBITS, 0)


@jit_kernel(do_not_specialize=["num_matrices"])
def _decide_kernel(
    first_tiles, ends, num_distinct, counts, widths, codes, grids, num_matrices, unique,
    num_symbols, alphabets, rotations, lows, LANES: tl.constexpr,
):  # fmt: skip
    """One program adds up the rows of one matrix that differ in their codes, and decides."""
    k = tl.program_id(0)
    kept = sum_tiles(ends, first_tiles, k, LANES)
    tl.store(num_distinct + k, kept)
    below, above = tl.load(codes + 2 * k + BELOW), tl.load(codes + 2 * k + ABOVE)
    smallest = -below + BIAS
    alphabet = above - BIAS - smallest + 1
    is_coded = (above > 0) & (alphabet <= _NARROW) & (tl.load(grids + 3 * k) > 0)
    num_coded = tl.where(is_coded, kept, 0)
    num_rows = tl.load(counts + k)
    nbits = ref_nbits(num_coded)
    symbols = 2 + ((num_coded - 1) >> low_nbits(nbits))
    is_worth = is_coded & ((num_rows - num_coded) * nbits > symbols * _TABLE_NBITS)
    low = tl.where(is_coded, smallest, 0).to(tl.int32)
    tl.store(unique + k, num_coded)
    tl.store(lows + k, low)
    tl.store(num_symbols + k, num_coded * tl.load(widths + k))
    tl.store(alphabets + k, tl.where(is_coded, alphabet, 1).to(tl.int32))
    tl.store(rotations + k, low & 255)
    index = k + num_matrices
    tl.store(num_symbols + index, tl.where(is_worth, num_rows, 0))
    tl.store(alphabets + index, tl.where(is_worth, symbols, 1).to(tl.int32))
    tl.store(rotations + index, low * 0)


@triton.jit
def _kept_before(distinct, begin, first_row, num_distinct, ends, first, TILE: tl.constexpr):
    """Return how many of the first ``distinct`` rows were kept.

    ``begin`` is the first tile of the matrix; the running sum ``ends`` over the tiles of distinct
    rows says which of the kept ones, ``first``, to look at.
    """
    kept = before_tile(ends, begin, begin + distinct // TILE)
    number = kept + tl.arange(0, TILE)
    known = number < num_distinct
    place = tl.load(first + first_row + number, mask=known, other=0)
    return kept + tl.sum((known & (place < distinct)).to(tl.int64), axis=0)


@jit_kernel(do_not_specialize=["num_matrices"])
def _split_kernel(
    counts, first_tiles, owners, first_rows, tables, distinct_counts, unique, slots, places, ends,
    again_slots, again_places, again_first, again_ends, starts, num_matrices, memory, marks, refs,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program numbers a tile of rows and splits the numbers into what an index stores.

    A row is new if it is the first with its values, and these are the first with their codes.
    """
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    num_distinct = tl.load(unique + k)
    if num_distinct > 0:
        begin, first_row = tl.load(first_tiles + k), tl.load(first_rows + k)
        row = (tile - begin).to(tl.int32) * TILE + tl.arange(0, TILE)
        inside = row < tl.load(counts + k)
        number, is_new = look_up(slots, tables, places, first_row + row, k, inside)
        before = before_tile(ends, begin, tile)
        # where no rows were merged, codes number them as values do
        if num_distinct < tl.load(distinct_counts + k):
            before = _kept_before(
                before, begin, first_row, num_distinct, again_ends, again_first, TILE
            )
            number, is_kept = look_up(
                again_slots, tables, again_places, first_row + number, k, inside
            )
            is_new = is_new & is_kept
        bits = tl.reshape(is_new.to(tl.int32), [TILE // 32, 32]) << tl.arange(0, 32)[None, :]
        word = tile * (TILE // 32) + tl.arange(0, TILE // 32)
        tl.store(marks + word, tl.sum(bits, axis=1))
        low = low_nbits(ref_nbits(num_distinct.to(tl.int32)))
        symbol = tl.where(is_new, 0, 1 + (number >> low)).to(tl.int16)
        tl.store(index_symbols(memory, starts, num_matrices, k) + row, symbol, mask=inside)
        added = is_new.to(tl.int32)
        place = row - before.to(tl.int32) - (tl.cumsum(added, axis=0) - added)
        tl.store(refs + first_row + place, number, mask=inside & ~is_new)


@triton.jit
def put_marks(target, marks, num_rows, part, num_parts, LANES: tl.constexpr):
    """Write every ``num_parts``-th run of the marks of a packed index to words at ``target``."""
    num_words = fields_nbytes(num_rows, 1) // 4
    for start in range(part * LANES, num_words, num_parts * LANES):
        word = start + tl.arange(0, LANES)
        inside = word < num_words
        tl.store(target + word, tl.load(marks + word, mask=inside, other=0), mask=inside)


@triton.jit
def put_refs(target, refs, num_refs, nbits, part, num_parts):
    """Write every ``num_parts``-th run of references of ``nbits`` bits to words at ``target``."""
    if nbits > 0:
        num_words = fields_nbytes(num_refs, nbits) // 4
        num_runs = (num_refs + FIELDS - 1) // FIELDS
        for run in range(part, num_runs, num_parts):
            pack_words(refs, num_refs, target, num_words, nbits, run, FIELDS, FIELDS)


def decide(
    matrices: MatrixList,
    by_code: RowNumbers,
    codes: torch.Tensor,
    grids: torch.Tensor,
    decisions: Decisions,
) -> None:
    """Decide what is coded, and with which alphabets.

    Args:
        matrices: of the list.
        by_code: rows counted by ``dedup.gpu.count_slots``, to be numbered after this.
        codes: int64 [num_matrices, 2], ``BELOW`` and ``ABOVE``.
        grids: of ``quantize.gpu.grids``.
        decisions: written.
    """
    tiles = matrices.rows.tiles
    _decide_kernel[(len(matrices),)](
        tiles.first_tiles, by_code.ends, by_code.counts, tiles.counts, matrices.widths, codes,
        grids, len(matrices), decisions.unique, decisions.counts, decisions.alphabets,
        decisions.rotations, decisions.lows, LANES=SCAN_STEP,
    )  # fmt: skip


def split_index(
    matrices: MatrixList,
    by_value: RowNumbers,
    by_code: RowNumbers,
    decisions: Decisions,
    index: SplitIndex,
    memory: torch.Tensor,
) -> None:
    """Split the numbers of all rows of the matrices that are coded.

    The symbols, int16, 0 for a new row, else 1 plus the high bits of its number, go to the second
    part of ``memory``; see ``MatrixList.starts``.
    """
    rows = matrices.rows
    tiles = rows.tiles
    _split_kernel[(tiles.num_tiles,)](
        tiles.counts, tiles.first_tiles, tiles.owners, rows.first_rows, rows.tables,
        by_value.counts, decisions.unique, by_value.slots, by_value.places, by_value.ends,
        by_code.slots, by_code.places, by_code.first, by_code.ends, matrices.starts, len(matrices),
        memory, index.marks, index.refs, TILE=ROWS_PER_TILE,
    )  # fmt: skip
