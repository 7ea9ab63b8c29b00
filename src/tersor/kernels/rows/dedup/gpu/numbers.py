"""Row de-duplication in Triton: one pass over the rows, through a hash table of row numbers.

A slot of the table names the smallest row seen so far of those that are equal to it. A row goes to
the slot that its hash names, or on to the next until one is empty or names an equal row; rows are
compared, never hashes, so a collision costs time but nothing else. The launches take lists of
matrices, whose numbers of rows lie on the device; finding slots takes one launch per width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.quantize.gpu.finite_range import fold_range
from tersor.kernels.rows.dedup.gpu.row_words import (
    MAX_PARTS,
    MAX_WORDS,
    NO_VALUES,
    Words,
    are_equal,
    hash_rows,
)
from tersor.kernels.runtime.device_cache import cached_on_stream, copy_async
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import TileTable, before_tile, sum_tiles, tile_table

_EMPTY = tl.constexpr((1 << 31) - 1)
_PLACE, _FIRST = tl.constexpr((1 << 31) - 1), tl.constexpr(-(1 << 31))
"""The bits of a place, and the bit of a first row."""
_SPARE: Final = 1024
"""Slots behind the last table, for lanes of a compare-and-swap that have nothing to insert."""
ROWS: Final = 32
"""Rows of a program that looks for their slots: at least as many as it has threads, because two
threads that hold the same row could see different contents of a slot while others write it."""
ROWS_PER_TILE: Final = 1024
"""Rows per program where only their numbers are handled."""
SCAN_STEP: Final = 1024
"""Tiles whose numbers one step of a running sum adds up."""
_CLEARED: Final = 4096


@dataclass(frozen=True, slots=True)
class RowList:
    """How the rows of several matrices share memory; a part of each belongs to each matrix.

    Attributes:
        rows_per_matrix: the most rows that each matrix can have.
        first_rows: int64, the first of each matrix's places for one number per row.
        tables: int64 [num_matrices, 2], first slot of each hash table, and its last slot from there.
        num_slots: of all tables, each of at least twice as many slots as its matrix has rows.
        tiles: of ``ROWS_PER_TILE`` rows.
    """

    rows_per_matrix: tuple[int, ...]
    first_rows: torch.Tensor
    tables: torch.Tensor
    num_slots: int
    tiles: TileTable


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The distinct rows of a list of matrices, left on the device.

    Attributes:
        slots: int32; where a row is, ``-1 - number`` of the distinct row that it equals.
        places: int32, the slot of each row, counted in its matrix's table; the highest bit says that
            the row is the first of its kind.
        first: int64, where each distinct row first appears, ascending.
        ends: int64, running sum over the tiles of each matrix of the rows that appear first in them.
        counts: int64 [num_matrices], distinct rows.
    """

    slots: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    ends: torch.Tensor
    counts: torch.Tensor


@jit_kernel(do_not_specialize=["num_slots", "num_zeroed"])
def _clear_kernel(slots, num_slots, zeroed, num_zeroed, EMPTY: tl.constexpr, TILE: tl.constexpr):
    """One program empties ``TILE`` slots, or sets as many words of other memory to 0."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(slots + place, tl.full([TILE], EMPTY, tl.int32), mask=place < num_slots)
    tl.store(zeroed + place, tl.zeros([TILE], dtype=tl.int64), mask=place < num_zeroed)


@triton.jit
def _insert(slots, slot, spare, row, pending):
    """Return what pending rows find in their slots; an empty one takes the row."""
    found = tl.load(slots + slot, mask=pending, other=0, cache_modifier=".cg")
    empty = pending & (found == _EMPTY)
    if tl.max(empty.to(tl.int32), axis=0) > 0:
        target = slots + tl.where(empty, slot, spare)
        before = tl.atomic_cas(target, tl.full(row.shape, _EMPTY, tl.int32), row, sem="relaxed")
        found = tl.where(empty, tl.where(before == _EMPTY, row, before), found)
    return found


@triton.jit
def _insert_rows(
    rows, row, count, num_words, slots, last, spare, places, extremes, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, FULL: tl.constexpr, WORDS: tl.constexpr, PARTS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Find the slots of rows, and note their smallest and largest finite value.

    Beyond the end the last row is loaded again: masks would take more instructions than all the rest.
    """
    existing = tl.minimum(row, count - 1)
    own, hashed, low, high = hash_rows(
        rows, existing, num_words, TYPE, ALIGNED, FULL, WORDS, PARTS, WHOLE
    )
    if TYPE != NO_VALUES:
        tl.store(extremes, low)
        tl.store(extremes + 1, high)
    pending = row < count
    place = hashed.to(tl.int64) & last
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        # rows that are not pending find row 0
        found = _insert(slots, place, spare, row, pending)
        equal = are_equal(
            rows, existing, own, found, num_words, TYPE, ALIGNED, FULL, WORDS, PARTS, WHOLE
        )
        settled = pending & equal
        tl.atomic_min(slots + place, row, mask=settled & (row < found), sem="relaxed")
        tl.store(places + row, place.to(tl.int32), mask=settled)
        pending = pending & ~settled
        place = (place + 1) & last


@jit_kernel(do_not_specialize=["origin", "num_slots"])
def _insert_kernel(
    starts, origin, counts, num_words, first_tiles, owners, first_rows, first_numbered, tables,
    slots, num_slots, places, extremes, WORD: tl.constexpr, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, FULL: tl.constexpr, SPARE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, WORDS: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One program finds the slots of ``ROWS`` rows, ``WORDS`` words of each at a time.

    These divide ``FULL`` rows; ``WHOLE`` rows have at most ``PARTS`` times so many. A single row is
    not looked at.
    """
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    local = tile - tl.load(first_tiles + k)
    first, count = local.to(tl.int32) * ROWS, tl.load(counts + k)
    table, last = tl.load(tables + 2 * k), tl.load(tables + 2 * k + 1)
    own_places = places + tl.load(first_rows + k)
    if (count == 1) & (first == 0):
        tl.store(slots + table, 0)
        tl.store(own_places, 0)
    elif first < count:
        row = first + tl.arange(0, ROWS)
        rows = (tl.load(starts + k) + origin).to(tl.pointer_type(WORD))
        spare = num_slots - table + (row % SPARE)
        noted = extremes + 2 * (tl.load(first_numbered + k) * (TILE // ROWS) + local)
        _insert_rows(
            rows, row, count, num_words, slots + table, last, spare, own_places, noted, TYPE,
            ALIGNED, FULL, WORDS, PARTS, WHOLE,
        )  # fmt: skip


@triton.jit
def _is_first(counts, first_tiles, owners, first_rows, tables, slots, places, TILE: tl.constexpr):
    """Return matrix, rows, where their slots are named, their slots, and which are the first."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    row = (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)
    inside = row < tl.load(counts + k)
    at = places + tl.load(first_rows + k) + row
    slot = tl.load(tables + 2 * k) + tl.load(at, mask=inside, other=0)
    named = tl.load(slots + slot, mask=inside, other=-1)
    return k, row, at, slots + slot, inside & (named == row)


@jit_kernel()
def _count_kernel(
    counts, first_tiles, owners, first_rows, tables, slots, places, num_first, extremes, keys,
    TYPE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program counts the rows of a tile that are the first of their kind.

    It also folds the extreme values of the ``PARTS`` parts of the tile into the matrix's range: were
    that left to the programs that find them, too many would meet at two numbers.
    """
    k, row, _, _, is_first = _is_first(
        counts, first_tiles, owners, first_rows, tables, slots, places, TILE
    )
    found = tl.sum(is_first.to(tl.int32), axis=0)
    tl.store(num_first + tl.program_id(0), found.to(tl.int64))
    if TYPE != NO_VALUES:
        number = tl.arange(0, 2 * PARTS)
        first_row = tl.min(row, axis=0) + (number // 2) * (TILE // PARTS)
        known = first_row < tl.load(counts + k)
        at = extremes + tl.program_id(0).to(tl.int64) * (2 * PARTS) + number
        fold_range(tl.load(at, mask=known, other=float("nan")), keys + 2 * k, TYPE)


@jit_kernel()
def _sum_kernel(first_tiles, ends, num_distinct, LANES: tl.constexpr):
    """One program adds up the first rows of one matrix."""
    k = tl.program_id(0)
    tl.store(num_distinct + k, sum_tiles(ends, first_tiles, k, LANES))


@jit_kernel()
def _number_kernel(
    counts, first_tiles, owners, first_rows, tables, slots, places, ends, first, TILE: tl.constexpr
):
    """One program numbers the first rows of a tile.

    Their slots get the numbers' complements, which name no row: who reads a slot in the meantime is
    told the same, that another row is the first.
    """
    k, row, at, slot, is_first = _is_first(
        counts, first_tiles, owners, first_rows, tables, slots, places, TILE
    )
    before = before_tile(ends, tl.load(first_tiles + k), tl.program_id(0))
    number = before.to(tl.int32) + tl.cumsum(is_first.to(tl.int32), axis=0) - 1
    tl.store(first + tl.load(first_rows + k) + number, row.to(tl.int64), mask=is_first)
    tl.store(at, tl.load(at, mask=is_first, other=0) | _FIRST, mask=is_first)
    tl.store(slot, -1 - number, mask=is_first)


@triton.jit
def look_up(slots, tables, places, at, k, inside):
    """Return the numbers of rows at ``at`` of matrix ``k``, and which are the first of their kind."""
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


@cached_on_stream
def row_list(rows_per_matrix: tuple[int, ...], device: torch.device) -> RowList:
    """Return how matrices of at most ``rows_per_matrix`` rows share memory."""
    sizes = torch.tensor(
        [triton.next_power_of_2(2 * rows) for rows in rows_per_matrix], device="cpu"
    )
    ends = sizes.cumsum(0)
    tables = torch.stack([ends - sizes, sizes - 1], 1)
    rows = torch.tensor(rows_per_matrix, device="cpu")
    first_rows = rows.cumsum(0) - rows
    tiles = tile_table(rows_per_matrix, ROWS_PER_TILE, device)
    return RowList(
        rows_per_matrix,
        copy_async(first_rows, device),
        copy_async(tables, device),
        int(ends[-1]),
        tiles,
    )


def num_list_slots(rows: RowList) -> int:
    """Return how many slots to allocate for a list."""
    return rows.num_slots + _SPARE


def clear(slots: torch.Tensor, zeroed: torch.Tensor) -> None:
    """Empty all slots, and set other memory, int64, to 0, in one launch."""
    num_tiles = ceil_div(max(slots.numel(), zeroed.numel()), _CLEARED)
    _clear_kernel[(num_tiles,)](
        slots, slots.numel(), zeroed, zeroed.numel(), EMPTY=_EMPTY, TILE=_CLEARED
    )


@cached_on_stream
def member_tiles(rows_per_matrix: tuple[int, ...], tile: int, device: torch.device) -> TileTable:
    """Return a table in which matrices without rows have no tile."""
    counts = torch.tensor(rows_per_matrix, device="cpu")
    num_tiles = (counts + (tile - 1)) // tile
    first_tiles = num_tiles.cumsum(0) - num_tiles
    owners = torch.arange(len(rows_per_matrix), dtype=torch.int32, device="cpu").repeat_interleave(
        num_tiles
    )
    total = int(num_tiles.sum())
    return TileTable(
        copy_async(counts, device),
        copy_async(first_tiles, device),
        copy_async(owners, device),
        total,
    )


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where to put the finite range of each matrix, none of which has a single row.

    Attributes:
        keys: as ``quantize.gpu.finite_range`` keeps ranges.
        extremes: float32 [num_extremes(rows)], working memory.
        dtype: of the values; not float64.
    """

    keys: torch.Tensor
    extremes: torch.Tensor
    dtype: torch.dtype


def num_extremes(rows: RowList) -> int:
    """Return how many smallest and largest values the programs for a list note."""
    return 2 * rows.tiles.num_tiles * (ROWS_PER_TILE // ROWS)


def find_slots(
    rows: RowList,
    tiles: TileTable,
    words: Words,
    starts: torch.Tensor,
    origin: int,
    counts: torch.Tensor,
    slots: torch.Tensor,
    places: torch.Tensor,
    ranges: Ranges | None = None,
) -> None:
    """Find the slots of the rows of the matrices of one width, without waiting.

    Args:
        rows: of the whole list.
        tiles: of ``ROWS`` rows of the matrices of this width; see ``member_tiles``.
        words: what a row is made of.
        starts: int64, address of each contiguous matrix, less ``origin``.
        origin: an address.
        counts: int64, rows of each matrix.
        slots: int32 [num_list_slots(rows)], cleared.
        places: int32, gets the slot of each row.
        ranges: what ``count_slots`` is to find besides, if anything.
    """
    columns = min(MAX_WORDS, triton.next_power_of_2(words.row_words))
    parts = ceil_div(words.row_words, columns)
    element: Any = NO_VALUES if ranges is None else TYPES[ranges.dtype]
    _insert_kernel[(tiles.num_tiles,)](
        starts, origin, counts, words.row_words, tiles.first_tiles, tiles.owners, rows.first_rows,
        rows.tiles.first_tiles, rows.tables, slots, rows.num_slots, places,
        slots if ranges is None else ranges.extremes, WORD=TYPES[words.dtype], TYPE=element,
        ALIGNED=words.aligned, FULL=words.row_words % columns == 0, SPARE=_SPARE, ROWS=ROWS,
        TILE=ROWS_PER_TILE, WORDS=columns, PARTS=min(parts, MAX_PARTS), WHOLE=parts <= MAX_PARTS,
        num_warps=1,
    )  # fmt: skip


def _shape(rows: RowList, counts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    tiles = rows.tiles
    return counts, tiles.first_tiles, tiles.owners, rows.first_rows, rows.tables


def count_slots(
    rows: RowList, counts: torch.Tensor, numbers: RowNumbers, ranges: Ranges | None = None
) -> None:
    """Count the distinct rows of every tile, without waiting.

    ``sum_tiles`` is to make running sums of these before ``number_slots``.

    Args:
        rows: of the list.
        counts: int64, rows of each matrix.
        numbers: with the slots and places of ``find_slots`` for all widths; ``ends`` is written.
        ranges: those of ``find_slots``.
    """
    element: Any = NO_VALUES if ranges is None else TYPES[ranges.dtype]
    slots = numbers.slots
    folded = (slots, slots) if ranges is None else (ranges.extremes, ranges.keys)
    _count_kernel[(rows.tiles.num_tiles,)](
        *_shape(rows, counts), slots, numbers.places, numbers.ends, *folded, TYPE=element,
        PARTS=ROWS_PER_TILE // ROWS, TILE=ROWS_PER_TILE,
    )  # fmt: skip


def number_slots(rows: RowList, counts: torch.Tensor, numbers: RowNumbers) -> None:
    """Number the distinct rows of each matrix in order of appearance, without waiting."""
    _number_kernel[(rows.tiles.num_tiles,)](
        *_shape(rows, counts), numbers.slots, numbers.places, numbers.ends, numbers.first,
        TILE=ROWS_PER_TILE,
    )  # fmt: skip


def number_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Number the distinct rows of a contiguous matrix of any dtype, without waiting.

    Returns:
        index: int32, the distinct row that each row equals.
        first: int64, where each distinct row first appears; only as many as there are are written.
        count: int64 [1], distinct rows.
    """
    device = matrix.device
    words = Words.of(matrix.shape[1] * matrix.element_size(), [matrix.data_ptr()])
    rows = row_list((matrix.shape[0],), device)
    slots = torch.full((num_list_slots(rows),), _EMPTY.value, dtype=torch.int32, device=device)
    places = torch.empty(matrix.shape[0], dtype=torch.int32, device=device)
    counts, origin = rows.tiles.counts, matrix.data_ptr()
    tiles = member_tiles(rows.rows_per_matrix, ROWS, device)
    find_slots(rows, tiles, words, rows.first_rows, origin, counts, slots, places)
    ends = torch.empty(rows.tiles.num_tiles, dtype=torch.int64, device=device)
    first = torch.empty(matrix.shape[0], dtype=torch.int64, device=device)
    found = RowNumbers(slots, places, first, ends, torch.empty_like(counts))
    count_slots(rows, counts, found)
    _sum_kernel[(1,)](rows.tiles.first_tiles, ends, found.counts, LANES=SCAN_STEP)
    number_slots(rows, counts, found)
    index = torch.empty_like(places)
    _index_kernel[(rows.tiles.num_tiles,)](
        *_shape(rows, counts), slots, places, index, TILE=ROWS_PER_TILE
    )
    return index, found.first, found.counts


def unique_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.unique_rows``; waits once, for the number of distinct rows."""
    if rows.numel() == 0:
        index = torch.zeros(rows.shape[0], dtype=torch.int32, device=rows.device)
        return index, torch.zeros(min(1, rows.shape[0]), dtype=torch.int64, device=rows.device)
    index, first, count = number_rows(rows.contiguous())
    return index, first[: int(count)]
