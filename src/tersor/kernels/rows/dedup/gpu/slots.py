"""Hash tables of row numbers in Triton: one pass over the rows finds the slot of each.

A slot names the smallest row seen so far of those that are equal to it. A row goes to the slot that its
hash names, or on to the next until one is empty or names an equal row; rows are compared, never
hashes, so a collision costs time but nothing else. In short lists, where a program mostly waits, a slot also has a
tag, bits of the hash above those of a row number, that spares a look at rows that differ. The launches take lists of
matrices, whose numbers of rows lie on the device; there is one per width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
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
from tersor.kernels.runtime.gpu.tiles import TileTable, tile_table

EMPTY = tl.constexpr((1 << 31) - 1)
_TAG = tl.constexpr((1 << 30) - 1)
"""Bits of a slot that a tag may have: not all below the sign, so that no entry looks like an empty slot."""
_SPARE: Final = 1024
"""Slots behind the last table, for lanes of a compare-and-swap that have nothing to insert."""
ROWS: Final = 32
"""Rows of a program that looks for their slots: at least as many as it has threads, because two
threads that hold the same row could see different contents of a slot while others write it."""
ROWS_PER_TILE: Final = 1024
"""Rows per program where only their numbers are handled."""
SHORT_ROWS: Final = 4096
"""Rows of a matrix up to which launches take longer than the work: a list of such matrices is short."""
_SLOTS_PER_ROW, _SLOTS_PER_SHORT_ROW = 2, 8
"""Slots of a table at least. A row seldom meets another's slot in a large table, which saves a program of a short list the
time of another look; for long lists, time to clear it counts."""
_CLEARED: Final = 4096


@dataclass(frozen=True, slots=True)
class RowList:
    """How the rows of several matrices share memory; a part of each belongs to each matrix.

    Attributes:
        rows_per_matrix: the most rows that each matrix can have.
        first_rows: int64, the first of each matrix's places for one number per row.
        tables: int64 [num_matrices, 2], first slot of each hash table, and its last slot from there.
        num_slots: of all tables, each of a power of two, at least twice as many slots as its matrix has rows.
        tiles: of ``ROWS_PER_TILE`` rows.
    """

    rows_per_matrix: tuple[int, ...]
    first_rows: torch.Tensor
    tables: torch.Tensor
    num_slots: int
    tiles: TileTable

    @property
    def is_short(self) -> bool:
        """Whether every matrix has at most ``SHORT_ROWS`` rows."""
        return max(self.rows_per_matrix) <= SHORT_ROWS


@jit_kernel(do_not_specialize=["num_slots", "num_zeroed"])
def _clear_kernel(slots, num_slots, zeroed, num_zeroed, EMPTY: tl.constexpr, TILE: tl.constexpr):
    """One program empties ``TILE`` slots, or sets as many words of other memory to 0."""
    start = tl.program_id(0).to(tl.int64) * TILE
    place = start + tl.arange(0, TILE)
    empty, zeros = tl.full([TILE], EMPTY, tl.int32), tl.zeros([TILE], dtype=tl.int64)
    # a mask that may end within 16 bytes would cut wide stores into pieces
    if start + TILE <= num_slots:
        tl.store(slots + place, empty)
    else:
        tl.store(slots + place, empty, mask=place < num_slots)
    if start < num_zeroed:
        tl.store(zeroed + place, zeros, mask=place < num_zeroed)


@triton.jit
def named_row(entry, last):
    """Return the row that entries of a table with ``last + 1`` slots name: there are half as many at most."""
    return entry & (last >> 1).to(tl.int32)


@triton.jit
def _put_at_once(slots, slot, spare, entry, pending):
    """Do what ``_insert`` does, without a look before: one wait less, more writes."""
    target = slots + tl.where(pending, slot, spare)
    before = tl.atomic_cas(target, tl.full(entry.shape, EMPTY, tl.int32), entry, sem="relaxed")
    return tl.where(before == EMPTY, entry, before)


@triton.jit
def _insert(slots, slot, spare, entry, pending):
    """Return what pending rows find in their slots; an empty one takes the entry."""
    found = tl.load(slots + slot, mask=pending, other=0, cache_modifier=".cg")
    empty = pending & (found == EMPTY)
    if tl.max(empty.to(tl.int32), axis=0) > 0:
        target = slots + tl.where(empty, slot, spare)
        before = tl.atomic_cas(target, tl.full(entry.shape, EMPTY, tl.int32), entry, sem="relaxed")
        found = tl.where(empty, tl.where(before == EMPTY, entry, before), found)
    return found


@triton.jit
def _seek(slots, place, last, spare, entry, pending):
    """Move pending rows on to slots with their tag, or to empty ones, which take their entries.

    Returns the places, and what is found there; where nothing is pending, the own entry.
    """
    found = entry
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        seen = _put_at_once(slots, place, spare, entry, pending)
        settled = pending & (seen - named_row(seen, last) == entry - named_row(entry, last))
        found = tl.where(settled, seen, found)
        pending = pending & ~settled
        place = tl.where(pending, (place + 1) & last, place)
    return place, found


@triton.jit
def _insert_rows(
    rows, row, count, num_words, slots, last, spare, places, extremes, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, FULL: tl.constexpr, WORDS: tl.constexpr, PARTS: tl.constexpr,
    WHOLE: tl.constexpr, IS_SHORT: tl.constexpr,
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
    entry = row
    if IS_SHORT:
        tagged = (hashed & _TAG).to(tl.int32)
        entry = tagged - named_row(tagged, last) + existing.to(tl.int32)
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        if IS_SHORT:
            place, found = _seek(slots, place, last, spare, entry, pending)
            found = named_row(found, last)
        else:
            # rows that are not pending find row 0
            found = _insert(slots, place, spare, entry, pending)
        equal = are_equal(
            rows, existing, own, found, num_words, TYPE, ALIGNED, FULL, WORDS, PARTS, WHOLE
        )
        settled = pending & equal
        tl.atomic_min(slots + place, entry, mask=settled & (row < found), sem="relaxed")
        tl.store(places + row, place.to(tl.int32), mask=settled)
        pending = pending & ~settled
        place = (place + 1) & last


@jit_kernel(do_not_specialize=["origin", "num_slots"])
def _insert_kernel(
    starts, origin, counts, num_words, first_tiles, owners, first_rows, first_numbered, tables,
    slots, num_slots, places, extremes, WORD: tl.constexpr, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, FULL: tl.constexpr, SPARE: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, WORDS: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
    IS_SHORT: tl.constexpr,
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
            ALIGNED, FULL, WORDS, PARTS, WHOLE, IS_SHORT,
        )  # fmt: skip


@cached_on_stream
def row_list(rows_per_matrix: tuple[int, ...], device: torch.device) -> RowList:
    """Return how matrices of at most ``rows_per_matrix`` rows share memory."""
    is_short = max(rows_per_matrix) <= SHORT_ROWS
    per_row = _SLOTS_PER_SHORT_ROW if is_short else _SLOTS_PER_ROW
    sizes = torch.tensor(
        [triton.next_power_of_2(per_row * rows) for rows in rows_per_matrix], device="cpu"
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
        slots, slots.numel(), zeroed, zeroed.numel(), EMPTY=EMPTY, TILE=_CLEARED
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
        IS_SHORT=rows.is_short, num_warps=1,
    )  # fmt: skip
