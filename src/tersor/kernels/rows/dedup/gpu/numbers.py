"""Numbering distinct rows in Triton, in order of appearance, from the slots of ``slots.py``.

Each tile of rows has a program; three launches count, sum and number the first rows in all tiles. A
"first row" is one that appears for the first time. In a short list each matrix has one program, which
numbers tile after tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.quantize.gpu.finite_range import fold_range
from tersor.kernels.rows.dedup.gpu.row_words import NO_VALUES, Words
from tersor.kernels.rows.dedup.gpu.slots import (
    EMPTY,
    ROWS,
    ROWS_PER_TILE,
    SHORT_ROWS,
    Ranges,
    RowLayout,
    find_slots,
    member_tiles,
    named_row,
    num_list_slots,
    row_layout,
)
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import sum_before_in_tensor, sum_tiles

_PLACE, _FIRST = tl.constexpr((1 << 31) - 1), tl.constexpr(-(1 << 31))
"""Mask of the bits of a place, and the bit that marks a first row."""
SCAN_STEP: Final = 1024
"""Tiles per step of a prefix sum."""
_THREADS: Final = 128
"""Minimum number of threads of a program that numbers a matrix."""


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The distinct rows of a list of matrices, on the device.

    Attributes:
        slots: int32; an occupied slot holds ``-1 - number`` of the distinct row.
        places: int32, the slot of each row, relative to its matrix's table; the highest bit marks a row
            that is the first of its kind.
        first: int64, the row in which each distinct row first appears, ascending.
        ends: int64, inclusive prefix sums over the tiles of each matrix of the number of first rows.
        counts: int64 [num_matrices], number of distinct rows.
    """

    slots: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    ends: torch.Tensor
    counts: torch.Tensor


@triton.jit
def _first_rows(k, row, counts, first_rows, tables, slots, places):
    """Return pointers to the places and to the slots of rows of matrix ``k``, and which rows are first."""
    inside = row < tl.load(counts + k)
    at = places + tl.load(first_rows + k) + row
    slot = slots + tl.load(tables + 2 * k) + tl.load(at, mask=inside, other=0)
    entry = tl.load(slot, mask=inside, other=-1)
    # a negative entry is the complement of a number and names no row
    named = named_row(entry, tl.load(tables + 2 * k + 1))
    return at, slot, inside & (entry >= 0) & (named == row)


@triton.jit
def _tile_rows(first_tiles, owners, TILE: tl.constexpr):
    """Return the matrix of this program's tile, and the rows of the tile."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    return k, (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)


@triton.jit
def _fold_extremes(extremes, num_parts, keys, TYPE: tl.constexpr, PARTS: tl.constexpr):
    """Fold the extreme values that ``num_parts`` programs stored, at most ``PARTS``, into a range."""
    number = tl.arange(0, 2 * PARTS)
    noted = tl.load(extremes + number, mask=number < 2 * num_parts, other=float("nan"))
    fold_range(noted, keys, TYPE)


@jit_kernel()
def _count_kernel(
    counts, first_tiles, owners, first_rows, tables, slots, places, num_first, extremes, keys,
    TYPE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program counts the rows of a tile that are the first of their kind.

    It also folds the extreme values of the ``PARTS`` parts of the tile into the matrix's range. If the
    programs that find them did so, too many would contend for two numbers.
    """
    k, row = _tile_rows(first_tiles, owners, TILE)
    _, _, is_first = _first_rows(k, row, counts, first_rows, tables, slots, places)
    found = tl.sum(is_first.to(tl.int32), axis=0)
    tl.store(num_first + tl.program_id(0), found.to(tl.int64))
    if TYPE != NO_VALUES:
        left = tl.load(counts + k).to(tl.int32) - tl.min(row, axis=0)
        rows_per_part: tl.constexpr = TILE // PARTS
        noted = extremes + tl.program_id(0).to(tl.int64) * (2 * PARTS)
        num_parts = (left + rows_per_part - 1) // rows_per_part
        _fold_extremes(noted, num_parts, keys + 2 * k, TYPE, PARTS)


@jit_kernel()
def _sum_kernel(first_tiles, ends, num_distinct, LANES: tl.constexpr):
    """One program turns the numbers of first rows of one matrix into prefix sums and stores the total."""
    k = tl.program_id(0)
    tl.store(num_distinct + k, sum_tiles(ends, first_tiles, k, LANES))


@triton.jit
def _number_tile(k, row, before, counts, first_rows, tables, slots, places, first):
    """Number the first rows among ``row`` of matrix ``k``, after ``before`` earlier ones; return how many.

    Their slots receive the complements of the numbers, which name no row: a concurrent reader of such a
    slot still sees that another row is the first.
    """
    at, slot, is_first = _first_rows(k, row, counts, first_rows, tables, slots, places)
    added = is_first.to(tl.int32)
    number = before + tl.cumsum(added, axis=0) - 1
    tl.store(first + tl.load(first_rows + k) + number, row.to(tl.int64), mask=is_first)
    tl.store(at, tl.load(at, mask=is_first, other=0) | _FIRST, mask=is_first)
    tl.store(slot, -1 - number, mask=is_first)
    return tl.sum(added, axis=0)


@jit_kernel()
def _number_kernel(
    counts, first_tiles, owners, first_rows, tables, slots, places, ends, first, TILE: tl.constexpr
):
    """One program numbers the first rows in a tile."""
    k, row = _tile_rows(first_tiles, owners, TILE)
    before = sum_before_in_tensor(ends, tl.load(first_tiles + k), tl.program_id(0)).to(tl.int32)
    _number_tile(k, row, before, counts, first_rows, tables, slots, places, first)


@triton.jit
def number_matrix(
    k, counts, first_rows, tables, slots, places, first, num_distinct, TILE: tl.constexpr
):
    """Number the first rows of matrix ``k`` of a short list in this program alone; return how many there are.

    ``TILE`` must be at least the number of threads: of two threads with the same row, one could read the slot
    that the other has written. A barrier makes the numbers visible to all threads of the program.
    """
    before = tl.full((), 0, tl.int32)
    for start in range(0, tl.load(counts + k).to(tl.int32), TILE):
        row = start + tl.arange(0, TILE)
        before += _number_tile(k, row, before, counts, first_rows, tables, slots, places, first)
    tl.store(num_distinct + k, before.to(tl.int64))
    tl.debug_barrier()
    return before


@triton.jit
def fold_matrix(
    k, counts, first_tiles, extremes, keys, TYPE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Fold the extreme values that programs for ``ROWS`` rows stored into the range of matrix ``k``.

    A matrix of a short list has at most ``PARTS`` such programs. A barrier makes the range visible to all
    threads of the program.
    """
    num_parts = (tl.load(counts + k).to(tl.int32) + ROWS - 1) // ROWS
    noted = extremes + 2 * tl.load(first_tiles + k) * (TILE // ROWS)
    _fold_extremes(noted, num_parts, keys + 2 * k, TYPE, PARTS)
    tl.debug_barrier()


@triton.jit
def look_up(slots, tables, places, at, k, inside):
    """Return the numbers of the rows of matrix ``k`` with places at ``at``, and which rows are first."""
    place = tl.load(places + at, mask=inside, other=0)
    slot = tl.load(tables + 2 * k) + (place & _PLACE)
    return -1 - tl.load(slots + slot, mask=inside, other=-1), place < 0


@jit_kernel()
def _index_kernel(
    counts, first_tiles, owners, first_rows, tables, slots, places, index, TILE: tl.constexpr
):
    """One program looks up the numbers of a tile of rows."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    row = (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)
    inside = row < tl.load(counts + k)
    at = tl.load(first_rows + k) + row
    number, _ = look_up(slots, tables, places, at, k, inside)
    tl.store(index + at, number, mask=inside)


def short_options(rows: RowLayout) -> dict[str, int]:
    """Return ``TILE``, a multiple of 32, and ``num_warps`` for kernels that number a short list."""
    tile = max(_THREADS, triton.next_power_of_2(max(rows.rows_per_matrix)))
    return {"TILE": tile, "num_warps": min(16, max(_THREADS, tile // 4) // 32)}


SHORT_PARTS: Final = SHORT_ROWS // ROWS
"""The argument ``PARTS`` of ``fold_matrix``."""


def _shape(rows: RowLayout, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    tiles = rows.tiles
    return counts, tiles.first_tiles, tiles.owners, rows.first_rows, rows.tables


def count_first_rows(
    rows: RowLayout, counts: torch.Tensor, numbers: RowNumbers, ranges: Ranges | None = None
) -> None:
    """Count the first rows in every tile, without waiting.

    The caller must turn the counts into prefix sums with ``sum_tiles`` before ``number_slots``.

    Args:
        rows: layout of the list.
        counts: int64, number of rows of each matrix.
        numbers: has the slots and places of ``find_slots`` for all widths; ``ends`` receives the counts.
        ranges: as in ``find_slots``; its keys are written.
    """
    element: Any = NO_VALUES if ranges is None else TYPES[ranges.dtype]
    slots = numbers.slots
    folded = (slots, slots) if ranges is None else (ranges.extremes, ranges.keys)
    _count_kernel[(rows.tiles.num_tiles,)](
        *_shape(rows, counts), slots, numbers.places, numbers.ends, *folded, TYPE=element,
        PARTS=ROWS_PER_TILE // ROWS, TILE=ROWS_PER_TILE,
    )  # fmt: skip


def number_slots(rows: RowLayout, counts: torch.Tensor, numbers: RowNumbers) -> None:
    """Number the distinct rows of each matrix in order of appearance, without waiting.

    The arguments are those of ``count_first_rows``.
    """
    _number_kernel[(rows.tiles.num_tiles,)](
        *_shape(rows, counts), numbers.slots, numbers.places, numbers.ends, numbers.first,
        TILE=ROWS_PER_TILE,
    )  # fmt: skip


def number_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Number the distinct rows of a contiguous matrix of any dtype, without waiting.

    Returns:
        index: int32, the number of the distinct row that each row equals.
        first: int64, the row in which each distinct row first appears; the rest of it is undefined.
        count: int64 [1], number of distinct rows.
    """
    device = matrix.device
    words = Words.of(matrix.shape[1] * matrix.element_size(), [matrix.data_ptr()])
    rows = row_layout((matrix.shape[0],), device)
    slots = torch.full((num_list_slots(rows),), EMPTY.value, dtype=torch.int32, device=device)
    places = torch.empty(matrix.shape[0], dtype=torch.int32, device=device)
    counts, origin = rows.tiles.counts, matrix.data_ptr()
    tiles = member_tiles(rows.rows_per_matrix, ROWS, device)
    find_slots(rows, tiles, words, rows.first_rows, origin, counts, slots, places)
    ends = torch.empty(rows.tiles.num_tiles, dtype=torch.int64, device=device)
    first = torch.empty(matrix.shape[0], dtype=torch.int64, device=device)
    found = RowNumbers(slots, places, first, ends, torch.empty_like(counts))
    count_first_rows(rows, counts, found)
    _sum_kernel[(1,)](rows.tiles.first_tiles, ends, found.counts, LANES=SCAN_STEP)
    number_slots(rows, counts, found)
    index = torch.empty_like(places)
    _index_kernel[(rows.tiles.num_tiles,)](
        *_shape(rows, counts), slots, places, index, TILE=ROWS_PER_TILE
    )
    return index, found.first, found.counts


def unique_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.unique_rows``; waits for the device once, for the number of distinct rows."""
    if rows.numel() == 0:
        index = torch.zeros(rows.shape[0], dtype=torch.int32, device=rows.device)
        return index, torch.zeros(min(1, rows.shape[0]), dtype=torch.int64, device=rows.device)
    index, first, count = number_rows(rows.contiguous())
    return index, first[: int(count)]
