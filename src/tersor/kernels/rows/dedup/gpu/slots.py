"""Hash tables of row numbers in Triton: one pass over the rows finds the slot of each.

A slot holds the smallest number seen so far among equal rows. A row probes from the slot given by its
hash to the next ones, until a slot is empty or names an equal row. Rows are compared, never hashes, so
a collision only costs time. In short lists, where programs mostly wait, a slot also has a tag: bits of
the hash above those of the row number, which save comparisons of rows that differ. A launch takes all
matrices of one width in a list; their numbers of rows are on the device.
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
"""Bits of a slot that a tag may use: not all those below the sign, so that no entry equals ``EMPTY``."""
_SPARE: Final = 1024
"""Slots after the last table, for lanes of a compare-and-swap that have nothing to insert."""
ROWS: Final = 32
"""Rows per program that looks for slots. There must be at least as many as threads: two threads with the
same row could see different contents of a slot while others write to it."""
ROWS_PER_TILE: Final = 1024
"""Rows per program in kernels that handle only the numbers of rows."""
SHORT_ROWS: Final = 4096
"""Up to this many rows per matrix, launches take longer than the work; a list of such matrices is short."""
_SLOTS_PER_ROW, _SLOTS_PER_SHORT_ROW = 2, 8
"""Minimum number of slots per row of a table. In a large table rows seldom probe occupied slots, which saves
programs of a short list another wait; for long lists, the time to clear the table matters."""
_CLEARED: Final = 4096


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The layout of buffers that several matrices share: per-row numbers, hash tables and tiles.

    Attributes:
        rows_per_matrix: the largest number of rows of each matrix.
        first_rows: int64, the index of each matrix's first row in buffers with one entry per row.
        tables: int64 [num_matrices, 2], the first slot of each hash table, and its number of slots minus 1.
        num_slots: number of slots of all tables. The size of a table is a power of two, and at least twice
            the number of rows.
        tiles: table of tiles of ``ROWS_PER_TILE`` rows.
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
    """One program empties ``TILE`` slots, and sets as many int64 words of other memory to 0."""
    start = tl.program_id(0).to(tl.int64) * TILE
    place = start + tl.arange(0, TILE)
    empty, zeros = tl.full([TILE], EMPTY, tl.int32), tl.zeros([TILE], dtype=tl.int64)
    # a mask that may end within 16 bytes would split wide stores
    if start + TILE <= num_slots:
        tl.store(slots + place, empty)
    else:
        tl.store(slots + place, empty, mask=place < num_slots)
    if start < num_zeroed:
        tl.store(zeroed + place, zeros, mask=place < num_zeroed)


@triton.jit
def named_row(entry, last):
    """Return the row that an entry names, without the tag; there are at most half as many rows as slots."""
    return entry & (last >> 1).to(tl.int32)


@triton.jit
def _put_at_once(slots, slot, spare, entry, pending):
    """Do the same as ``_insert`` without loading the slot first: one wait less, more writes."""
    target = slots + tl.where(pending, slot, spare)
    before = tl.atomic_cas(target, tl.full(entry.shape, EMPTY, tl.int32), entry, sem="relaxed")
    return tl.where(before == EMPTY, entry, before)


@triton.jit
def _insert(slots, slot, spare, entry, pending):
    """Return the entries that pending rows find in their slots; an empty slot takes the row's own entry."""
    found = tl.load(slots + slot, mask=pending, other=0, cache_modifier=".cg")
    empty = pending & (found == EMPTY)
    if tl.max(empty.to(tl.int32), axis=0) > 0:
        target = slots + tl.where(empty, slot, spare)
        before = tl.atomic_cas(target, tl.full(entry.shape, EMPTY, tl.int32), entry, sem="relaxed")
        found = tl.where(empty, tl.where(before == EMPTY, entry, before), found)
    return found


@triton.jit
def _seek(slots, place, last, spare, entry, pending):
    """Advance pending rows to slots with the same tag, or to empty ones, which take their entries.

    Returns the slots and the entries found there; for rows that are not pending, their own entries.
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
    """Find the slots of rows, and store their smallest and largest finite value.

    Past the end the last row is loaded again, because masks would take more instructions than all the
    rest.
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

    ``FULL`` means that the words per row are a multiple of ``WORDS``, ``WHOLE`` that they are at most
    ``PARTS * WORDS``. The row of a matrix with a single row is not read.
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
def row_layout(rows_per_matrix: tuple[int, ...], device: torch.device) -> RowLayout:
    """Return the layout of buffers for matrices of at most ``rows_per_matrix`` rows."""
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
    return RowLayout(
        rows_per_matrix,
        copy_async(first_rows, device),
        copy_async(tables, device),
        int(ends[-1]),
        tiles,
    )


def num_list_slots(rows: RowLayout) -> int:
    """Return how many slots to allocate for a list, spare ones included."""
    return rows.num_slots + _SPARE


def clear(slots: torch.Tensor, zeroed: torch.Tensor) -> None:
    """Empty all slots, and set other memory, int64, to 0, in one launch."""
    num_tiles = ceil_div(max(slots.numel(), zeroed.numel()), _CLEARED)
    _clear_kernel[(num_tiles,)](
        slots, slots.numel(), zeroed, zeroed.numel(), EMPTY=EMPTY, TILE=_CLEARED
    )


@cached_on_stream
def member_tiles(rows_per_matrix: tuple[int, ...], tile: int, device: torch.device) -> TileTable:
    """Return a table of tiles in which, unlike in ``tile_table``, matrices without rows have no tile."""
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
    """Outputs for the finite range of each matrix; no matrix may have just a single row.

    Attributes:
        keys: ranges as ``quantize.gpu.finite_range`` stores them.
        extremes: float32 [num_extremes(rows)], working memory.
        dtype: dtype of the values; not float64.
    """

    keys: torch.Tensor
    extremes: torch.Tensor
    dtype: torch.dtype


def num_extremes(rows: RowLayout) -> int:
    """Return the size of ``Ranges.extremes``: two values per program that looks for slots."""
    return 2 * rows.tiles.num_tiles * (ROWS_PER_TILE // ROWS)


def find_slots(
    rows: RowLayout,
    tiles: TileTable,
    words: Words,
    starts: torch.Tensor,
    origin: int,
    counts: torch.Tensor,
    slots: torch.Tensor,
    places: torch.Tensor,
    ranges: Ranges | None = None,
) -> None:
    """Find the slots of the rows of all matrices of one width, without waiting.

    Args:
        rows: layout of the whole list.
        tiles: tiles of ``ROWS`` rows of the matrices of this width; see ``member_tiles``.
        words: how a row is divided into words.
        starts: int64, the address of each contiguous matrix, relative to ``origin``.
        origin: an address.
        counts: int64, number of rows of each matrix.
        slots: int32 [num_list_slots(rows)], cleared.
        places: int32, receives the slot of each row.
        ranges: if ``count_first_rows`` is to compute ranges too, receives the extremes they follow from.
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
