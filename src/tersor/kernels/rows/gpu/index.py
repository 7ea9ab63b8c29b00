"""The index of de-duplicated rows of a list of matrices in Triton. Layout: ``rows/layout.py``.

Rows are numbered by their values, and the distinct rows again by their codes. The kernels here combine
the two numberings and split the result into what an index stores. Which of its two forms is written is
decided later, when the size of the coded one is known.
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
from tersor.kernels.rows.dedup.gpu.numbers import (
    SCAN_STEP,
    RowNumbers,
    count_first_rows,
    look_up,
    number_matrix,
    number_slots,
    short_options,
)
from tersor.kernels.rows.dedup.gpu.slots import ROWS_PER_TILE
from tersor.kernels.rows.gpu.matrices import MatrixList, index_symbols
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded, sum_before_in_tensor, sum_tiles

_SYMBOL_NBITS = tl.constexpr(layout.SYMBOL_NBITS)
_TABLE_NBITS = tl.constexpr(layout.TABLE_NBITS)
_NARROW = tl.constexpr(NARROW)
BIAS = tl.constexpr(1 << 31)
BELOW, ABOVE = tl.constexpr(0), tl.constexpr(1)
"""Indices into the extremes of a matrix's codes, int64 [2]: the maximum of ``BIAS - code`` and of
``BIAS + code``, both of which can start from 0. A value without a code counts as far from all codes."""
MARK_WORDS: Final = ROWS_PER_TILE // 32
"""32-bit words that hold the marks of a tile of rows."""
MOST_FIELDS: Final = 1024
"""Largest number of references that are packed at once."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """How each matrix is coded, decided on the device once its rows are numbered.

    Streams are the codes of all matrices, followed by the coded indices of all matrices.

    Attributes:
        num_distinct: int64, number of distinct rows; 0 if the matrix cannot be coded here.
        counts: int64 [2 * num_matrices], number of symbols of each stream; 0 for an index that is not
            worth coding.
        alphabets: int32 [2 * num_matrices].
        rotations: int32 [2 * num_matrices]: the lowest byte of the smallest code; 0 for an index.
        lows: int32, the smallest code.
    """

    num_distinct: torch.Tensor
    counts: torch.Tensor
    alphabets: torch.Tensor
    rotations: torch.Tensor
    lows: torch.Tensor


@dataclass(frozen=True, slots=True)
class SplitIndex:
    """The parts of the indices of all matrices, except for the symbols.

    Attributes:
        marks: int32 [num_tiles * MARK_WORDS], one bit per row, set if the row is new; every tile of
            ``ROWS_PER_TILE`` rows begins with a new word.
        refs: int32 [num_rows], the numbers of the rows of each matrix that are not new.
    """

    marks: torch.Tensor
    refs: torch.Tensor


@triton.jit
def fields_nbytes(count, width):
    """Return the size of packed fields; see ``pack.fields.reference``."""
    return padded((count * width + 7) // 8)


@triton.jit
def ref_nbits(num_distinct):
    """Return the number of bits that identify one of ``num_distinct`` rows; see ``layout.ref_nbits``."""
    nbits = num_distinct * 0
    for k in tl.static_range(31):
        nbits += (((num_distinct - 1) >> k) > 0).to(nbits.dtype)
    return nbits


@triton.jit
def low_nbits(nbits):
    """Return how many low bits of a reference are not entropy-coded; see ``layout.low_nbits``."""
    return tl.maximum(nbits - _SYMBOL_NBITS, 0)


@triton.jit
def _decide(k, num_unique, num_matrices, counts, widths, codes, grids, decisions):
    """Decide how matrix ``k`` is coded, which has ``num_unique`` rows with different codes.

    ``decisions`` are the attributes of ``Decisions``. Returns the number of distinct rows, 0 if the matrix is not
    coded.
    """
    num_distinct, num_symbols, alphabets, rotations, lows = decisions
    below, above = tl.load(codes + 2 * k + BELOW), tl.load(codes + 2 * k + ABOVE)
    smallest = -below + BIAS
    alphabet = above - BIAS - smallest + 1
    is_coded = (above > 0) & (alphabet <= _NARROW) & (tl.load(grids + 3 * k) > 0)
    num_coded = tl.where(is_coded, num_unique, 0)
    num_rows = tl.load(counts + k)
    nbits = ref_nbits(num_coded)
    symbols = 2 + ((num_coded - 1) >> low_nbits(nbits))
    is_worth = is_coded & ((num_rows - num_coded) * nbits > symbols * _TABLE_NBITS)
    low = tl.where(is_coded, smallest, 0).to(tl.int32)
    tl.store(num_distinct + k, num_coded)
    tl.store(lows + k, low)
    tl.store(num_symbols + k, num_coded * tl.load(widths + k))
    tl.store(alphabets + k, tl.where(is_coded, alphabet, 1).to(tl.int32))
    tl.store(rotations + k, low & 255)
    index = k + num_matrices
    tl.store(num_symbols + index, tl.where(is_worth, num_rows, 0))
    tl.store(alphabets + index, tl.where(is_worth, symbols, 1).to(tl.int32))
    tl.store(rotations + index, low * 0)
    return num_coded


@jit_kernel(do_not_specialize=["num_matrices"])
def _decide_kernel(
    first_tiles, ends, unique_counts, counts, widths, codes, grids, num_matrices, decisions,
    LANES: tl.constexpr,
):  # fmt: skip
    """One program sums the number of rows of one matrix with different codes, and decides how it is coded."""
    k = tl.program_id(0)
    num_unique = sum_tiles(ends, first_tiles, k, LANES)
    tl.store(unique_counts + k, num_unique)
    _decide(k, num_unique, num_matrices, counts, widths, codes, grids, decisions)


@triton.jit
def _unique_before(distinct, begin, first_row, num_distinct, ends, first, TILE: tl.constexpr):
    """Return how many of the first ``distinct`` rows, distinct by value, are also distinct by code.

    ``begin`` is the first tile of the matrix. ``first`` lists the rows that are distinct by code, and the
    prefix sums ``ends`` over the tiles of rows that are distinct by value tell which of them to examine.
    """
    before = sum_before_in_tensor(ends, begin, begin + distinct // TILE)
    number = before + tl.arange(0, TILE)
    known = number < num_distinct
    place = tl.load(first + first_row + number, mask=known, other=0)
    return before + tl.sum((known & (place < distinct)).to(tl.int64), axis=0)


@triton.jit
def _split_tile(
    k, row, before, num_distinct, is_merged, counts, first_rows, tables, by_value, by_code, marks,
    symbols, refs, TILE: tl.constexpr, HAS_SYMBOLS: tl.constexpr,
):  # fmt: skip
    """Number rows of matrix ``k`` and split the numbers into what an index stores; return how many are new.

    A row is new if it is the first with its values, and these are the first with their codes.

    Args:
        k: index of a matrix that is coded.
        row: int32 [TILE], consecutive rows.
        before: int32, number of new rows before these.
        num_distinct: number of distinct rows of the matrix.
        is_merged: whether numbering by codes differs from numbering by values.
        counts: number of rows of each matrix.
        first_rows: ``RowLayout.first_rows``.
        tables: ``RowLayout.tables``.
        by_value: slots and places of the rows.
        by_code: slots and places of the distinct rows.
        marks: receives the marks of the matrix.
        symbols: receives the symbols of the matrix.
        refs: receives the references of all matrices.
        TILE: number of rows.
        HAS_SYMBOLS: whether indices may be coded.
    """
    first_row, inside = tl.load(first_rows + k), row < tl.load(counts + k)
    slots, places = by_value
    number, is_new = look_up(slots, tables, places, first_row + row, k, inside)
    if is_merged:
        again_slots, again_places = by_code
        number, is_unique = look_up(
            again_slots, tables, again_places, first_row + number, k, inside
        )
        is_new = is_new & is_unique
    bits = tl.reshape(is_new.to(tl.int32), [TILE // 32, 32]) << tl.arange(0, 32)[None, :]
    # a tile may be larger than the matrix, and the words after its marks belong to the next one
    word = tl.min(row, axis=0) // 32 + tl.arange(0, TILE // 32)
    num_words = fields_nbytes(tl.load(counts + k), 1) // 4
    tl.store(marks + word, tl.sum(bits, axis=1), mask=word < num_words)
    if HAS_SYMBOLS:
        low = low_nbits(ref_nbits(num_distinct))
        tl.store(symbols + row, tl.where(is_new, 0, 1 + (number >> low)).to(tl.int16), mask=inside)
    added = is_new.to(tl.int32)
    place = row - before - (tl.cumsum(added, axis=0) - added)
    tl.store(refs + first_row + place, number, mask=inside & ~is_new)
    return tl.sum(added, axis=0)


@jit_kernel(do_not_specialize=["num_matrices"])
def _split_kernel(
    counts, first_tiles, owners, first_rows, tables, distinct_counts, unique, by_value, ends,
    by_code, again_first, again_ends, starts, num_matrices, memory, marks, refs,
    TILE: tl.constexpr, HAS_SYMBOLS: tl.constexpr,
):  # fmt: skip
    """One program splits the numbers of a tile of rows."""
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    num_distinct = tl.load(unique + k)
    if num_distinct > 0:
        begin = tl.load(first_tiles + k)
        row = (tile - begin).to(tl.int32) * TILE + tl.arange(0, TILE)
        before = sum_before_in_tensor(ends, begin, tile)
        # if no rows were merged, numbering by codes equals numbering by values
        is_merged = num_distinct < tl.load(distinct_counts + k)
        if is_merged:
            before = _unique_before(
                before, begin, tl.load(first_rows + k), num_distinct, again_ends, again_first, TILE
            )
        symbols = index_symbols(memory, starts, num_matrices, k, HAS_SYMBOLS)
        _split_tile(
            k, row, before.to(tl.int32), num_distinct.to(tl.int32), is_merged, counts, first_rows,
            tables, by_value, by_code, marks + begin * (TILE // 32), symbols, refs, TILE,
            HAS_SYMBOLS,
        )  # fmt: skip


@jit_kernel(do_not_specialize=["num_matrices"])
def _index_kernel(
    counts, widths, first_tiles, first_rows, tables, distinct_counts, by_value, by_code,
    again_first, unique_counts, codes, grids, num_matrices, decisions, starts, memory, marks, refs,
    TILE: tl.constexpr, TILE_WORDS: tl.constexpr, HAS_SYMBOLS: tl.constexpr,
):  # fmt: skip
    """One program numbers the distinct rows of one matrix by code, decides, and splits all row numbers."""
    k = tl.program_id(0).to(tl.int64)
    again_slots, again_places = by_code
    num_unique = number_matrix(
        k, distinct_counts, first_rows, tables, again_slots, again_places, again_first,
        unique_counts, TILE,
    )  # fmt: skip
    num_distinct = _decide(
        k, num_unique.to(tl.int64), num_matrices, counts, widths, codes, grids, decisions
    ).to(tl.int32)
    if num_distinct > 0:
        is_merged = num_distinct < tl.load(distinct_counts + k)
        symbols = index_symbols(memory, starts, num_matrices, k, HAS_SYMBOLS)
        marks += tl.load(first_tiles + k) * TILE_WORDS
        before = tl.full((), 0, tl.int32)
        for start in range(0, tl.load(counts + k).to(tl.int32), TILE):
            row = start + tl.arange(0, TILE)
            before += _split_tile(
                k, row, before, num_distinct, is_merged, counts, first_rows, tables, by_value,
                by_code, marks, symbols, refs, TILE, HAS_SYMBOLS,
            )  # fmt: skip


@triton.jit
def put_marks(target, marks, num_rows, part, num_parts, LANES: tl.constexpr):
    """Write every ``num_parts``-th run of the marks of a packed index, as words at ``target``."""
    num_words = fields_nbytes(num_rows, 1) // 4
    for start in range(part * LANES, num_words, num_parts * LANES):
        word = start + tl.arange(0, LANES)
        inside = word < num_words
        tl.store(target + word, tl.load(marks + word, mask=inside, other=0), mask=inside)


@triton.jit
def put_refs(target, refs, num_refs, nbits, part, num_parts, FIELDS: tl.constexpr):
    """Pack every ``num_parts``-th run of ``FIELDS`` references, of ``nbits`` each, into words at ``target``."""
    if nbits > 0:
        num_words = fields_nbytes(num_refs, nbits) // 4
        num_runs = (num_refs + FIELDS - 1) // FIELDS
        for run in range(part, num_runs, num_parts):
            pack_words(refs, num_refs, target, num_words, nbits, run, FIELDS, FIELDS)


def split_index(
    matrices: MatrixList,
    by_value: RowNumbers,
    by_code: RowNumbers,
    codes: torch.Tensor,
    grids: torch.Tensor,
    decisions: Decisions,
    index: SplitIndex,
    memory: torch.Tensor,
) -> None:
    """Number distinct rows by code, decide which matrices are coded, and split the row numbers of those.

    Args:
        matrices: tables of the list.
        by_value: numbers of the rows.
        by_code: has the slots and places of the distinct rows, from ``dedup.gpu.slots.find_slots``; the rest is
            written.
        codes: int64 [num_matrices, 2], see ``BELOW`` and ``ABOVE``.
        grids: from ``quantize.gpu.grids``.
        decisions: written.
        index: written.
        memory: uint8; its second part (see ``MatrixList.starts``) receives the symbols of indices that may be
            coded: int16, 0 for a new row, else 1 plus the high bits of its number.
    """
    rows, num = matrices.rows, len(matrices)
    tiles = rows.tiles
    decided = (
        decisions.num_distinct, decisions.counts, decisions.alphabets, decisions.rotations,
        decisions.lows,
    )  # fmt: skip
    values, again = (by_value.slots, by_value.places), (by_code.slots, by_code.places)
    has_symbols = matrices.num_indices > 0
    if rows.is_short:
        _index_kernel[(num,)](
            tiles.counts, matrices.widths, tiles.first_tiles, rows.first_rows, rows.tables,
            by_value.counts, values, again, by_code.first, by_code.counts, codes, grids, num,
            decided, matrices.starts, memory, index.marks, index.refs, TILE_WORDS=MARK_WORDS,
            HAS_SYMBOLS=has_symbols, **short_options(rows),
        )  # fmt: skip
        return
    count_first_rows(rows, by_value.counts, by_code)
    _decide_kernel[(num,)](
        tiles.first_tiles, by_code.ends, by_code.counts, tiles.counts, matrices.widths, codes,
        grids, num, decided, LANES=SCAN_STEP,
    )  # fmt: skip
    number_slots(rows, by_value.counts, by_code)
    _split_kernel[(tiles.num_tiles,)](
        tiles.counts, tiles.first_tiles, tiles.owners, rows.first_rows, rows.tables,
        by_value.counts, decisions.num_distinct, values, by_value.ends, again, by_code.first,
        by_code.ends, matrices.starts, num, memory, index.marks, index.refs, TILE=ROWS_PER_TILE,
        HAS_SYMBOLS=has_symbols,
    )  # fmt: skip
