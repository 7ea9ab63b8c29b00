"""Row de-duplication in Triton: one pass over the rows, through a hash table of row numbers.

A slot of the table names the smallest row seen so far of those that are equal to it. A row goes to
the slot that its hash names, or on to the next until one is empty or names an equal row; rows are
compared, never hashes, so a collision costs time but nothing else. The launches take lists of
matrices of one width, whose numbers of rows lie on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.tensor_list.gpu import TileTable, addresses, tile_table

_EMPTY = tl.constexpr((1 << 31) - 1)
_SPARE: Final = 1024
"""Slots behind the last table, for lanes of a compare-and-swap that have nothing to insert."""
_TILE_WORDS: Final = 2048
"""Words that a program holds while it looks for the slots of its rows."""
_MAX_WORDS: Final = 64
_MIN_ROWS: Final = 32
"""As many as a program has threads: each row must belong to one thread, because two that hold the
same row could see different contents of a slot while others write it."""
_NUMBERED: Final = 1024
"""Rows per program where only their numbers are handled."""


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The distinct rows of a list of matrices, left on the device.

    Matrix ``k`` has room for as many rows as its largest possible number, after those before it.

    Attributes:
        index: int32, the distinct row that each row equals.
        first: int64, where each distinct row first appears, ascending.
        ends: int64, running sum over ``tiles`` of the rows that appear first in them.
        tiles: of ``_NUMBERED`` rows.
    """

    index: torch.Tensor
    first: torch.Tensor
    ends: torch.Tensor
    tiles: TileTable


@triton.jit
def _load_words(rows, row, column, num_words, known, ALIGNED: tl.constexpr):
    places = rows + (row.to(tl.int64)[:, None] * num_words + column[None, :])
    if ALIGNED:
        places = tl.multiple_of(places, (1, 16))
    return tl.load(places, mask=known[:, None] & (column < num_words)[None, :], other=0)


@triton.jit
def _mixed(words, column):
    """Return the sum over a row of its words, each scrambled together with its column."""
    x = words.to(tl.int32).to(tl.uint32, bitcast=True)
    x ^= ((column + 1).to(tl.uint32) * 0x1E3779B1)[None, :]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x46CA68B5
    return tl.sum(x ^ (x >> 16), axis=1)


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
def _insert_kernel(
    starts, counts, num_words, first_tiles, owners, first_rows, tables, slots, num_slots, places,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, SPARE: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One program finds the slots of ``ROWS`` rows; ``WHOLE`` rows have at most ``WORDS`` words."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    row = (tile - tl.load(first_tiles + k)).to(tl.int32) * ROWS + tl.arange(0, ROWS)
    pending = row < tl.load(counts + k)
    rows = tl.load(starts + k).to(tl.pointer_type(TYPE))
    table, last = tl.load(tables + 2 * k), tl.load(tables + 2 * k + 1)
    column = tl.arange(0, WORDS)
    own = _load_words(rows, row, column, num_words, pending, ALIGNED)
    hashed = _mixed(own, column)
    if not WHOLE:
        for start in range(WORDS, num_words, WORDS):
            part = _load_words(rows, row, start + column, num_words, pending, ALIGNED)
            hashed += _mixed(part, start + column)
    hashed = (hashed ^ (hashed >> 16)) * 0x7FEB352D
    place = (hashed ^ (hashed >> 15)).to(tl.int64) & last
    spare = num_slots + (row % SPARE)
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        found = _insert(slots, table + place, spare, row, pending)
        other = pending & (found != row)
        theirs = _load_words(rows, found, column, num_words, other, ALIGNED)
        differs = tl.max((theirs != own).to(tl.int32), axis=1)
        if not WHOLE:
            for start in range(WORDS, num_words, WORDS):
                part = _load_words(rows, row, start + column, num_words, other, ALIGNED)
                theirs = _load_words(rows, found, start + column, num_words, other, ALIGNED)
                differs |= tl.max((theirs != part).to(tl.int32), axis=1)
        settled = pending & ((differs == 0) | (found == row))
        tl.atomic_min(slots + table + place, row, mask=settled & (row < found), sem="relaxed")
        tl.store(places + tl.load(first_rows + k) + row, (table + place).to(tl.int32), mask=settled)
        pending = pending & ~settled
        place = (place + 1) & last


@triton.jit
def _is_first(counts, first_tiles, owners, first_rows, slots, places, TILE: tl.constexpr):
    """Return matrix, rows, their slots, whether they exist, and whether they are the first."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    row = (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)
    inside = row < tl.load(counts + k)
    place = tl.load(places + tl.load(first_rows + k) + row, mask=inside, other=0)
    named = tl.load(slots + place, mask=inside, other=-1)
    return k, row, place, inside, named == row


@triton.jit
def _count_kernel(
    counts, first_tiles, owners, first_rows, slots, places, num_first, TILE: tl.constexpr
):
    """One program counts the rows of a tile that are the first of their kind."""
    _, _, _, _, is_first = _is_first(counts, first_tiles, owners, first_rows, slots, places, TILE)
    found = tl.sum(is_first.to(tl.int32), axis=0)
    tl.store(num_first + tl.program_id(0), found.to(tl.int64))


@triton.jit
def _number_kernel(
    counts, first_tiles, owners, first_rows, slots, places, ends, first, numbers,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program numbers the first rows of a tile; their slots get the numbers."""
    k, row, place, _, is_first = _is_first(
        counts, first_tiles, owners, first_rows, slots, places, TILE
    )
    tile, start = tl.program_id(0), tl.load(first_tiles + k)
    before = tl.load(ends + tile - 1, mask=tile > 0, other=0)
    before -= tl.load(ends + start - 1, mask=start > 0, other=0)
    number = before.to(tl.int32) + tl.cumsum(is_first.to(tl.int32), axis=0) - 1
    tl.store(first + tl.load(first_rows + k) + number, row.to(tl.int64), mask=is_first)
    tl.store(numbers + place, number, mask=is_first)


@triton.jit
def _index_kernel(
    counts, first_tiles, owners, first_rows, places, numbers, index, TILE: tl.constexpr
):
    """One program looks up the numbers of a tile of rows."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    row = (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)
    inside = row < tl.load(counts + k)
    at = tl.load(first_rows + k) + row
    place = tl.load(places + at, mask=inside, other=0)
    tl.store(index + at, tl.load(numbers + place, mask=inside, other=0), mask=inside)


@lru_cache(maxsize=256)
def _tables(nums_rows: tuple[int, ...], device: torch.device) -> tuple[Any, Any, int]:
    """Return where the rows of each matrix start, its table and last slot; and all slots.

    A table has at least twice as many slots as its matrix rows.
    """
    sizes = torch.tensor([triton.next_power_of_2(2 * rows) for rows in nums_rows])
    ends = sizes.cumsum(0)
    tables = torch.stack([ends - sizes, sizes - 1], 1)
    rows = torch.tensor(nums_rows)
    first_rows = rows.cumsum(0) - rows
    return first_rows.to(device), tables.to(device), int(ends[-1])


def number_rows(
    matrices: Sequence[torch.Tensor], counts: torch.Tensor | None = None
) -> DistinctRows:
    """Number the distinct rows of each contiguous matrix in order of appearance, without waiting.

    Args:
        matrices: all of one width, dtype and device; dtype int32, int16 or uint8.
        counts: int64 on the device, rows of each that count; all of them if None.
    """
    device, width = matrices[0].device, matrices[0].shape[1]
    nums_rows = tuple(matrix.shape[0] for matrix in matrices)
    first_rows, tables, num_slots = _tables(nums_rows, device)
    words = min(_MAX_WORDS, triton.next_power_of_2(width))
    rows = max(_MIN_ROWS, min(64, _TILE_WORDS // words))
    tiles = tile_table(nums_rows, _NUMBERED, device)
    row_tiles = tile_table(nums_rows, rows, device)
    counts = tiles.counts if counts is None else counts
    slots = torch.full((num_slots + _SPARE,), _EMPTY.value, dtype=torch.int32, device=device)
    total = sum(nums_rows)
    places = torch.empty(total, dtype=torch.int32, device=device)
    dtype = matrices[0].dtype
    types = {torch.int32: tl.int32, torch.int16: tl.int16, torch.uint8: tl.uint8}
    aligned = all(matrix.data_ptr() % 16 == 0 for matrix in matrices)
    _insert_kernel[(row_tiles.num_tiles,)](
        addresses(matrices, device), counts, width, row_tiles.first_tiles, row_tiles.owners,
        first_rows, tables, slots, num_slots, places, TYPE=types[dtype],
        ALIGNED=aligned and width * dtype.itemsize % 16 == 0, SPARE=_SPARE, ROWS=rows,
        WORDS=words, WHOLE=width <= words, num_warps=1,
    )  # fmt: skip
    shape = counts, tiles.first_tiles, tiles.owners, first_rows
    ends = torch.empty(tiles.num_tiles, dtype=torch.int64, device=device)
    index, numbers = torch.empty_like(places), torch.empty_like(slots)
    first = torch.empty(total, dtype=torch.int64, device=device)
    grid = (tiles.num_tiles,)
    _count_kernel[grid](*shape, slots, places, ends, TILE=_NUMBERED)
    ends.cumsum_(0)
    _number_kernel[grid](*shape, slots, places, ends, first, numbers, TILE=_NUMBERED)
    _index_kernel[grid](*shape, places, numbers, index, TILE=_NUMBERED)
    return DistinctRows(index, first, ends, tiles)


def as_words(rows: torch.Tensor) -> torch.Tensor:
    """Return contiguous rows as rows of the widest integers that fill and fit them."""
    nbytes = rows.shape[1] * rows.element_size()
    for dtype in (torch.int32, torch.int16):
        if nbytes % dtype.itemsize == 0 and rows.data_ptr() % dtype.itemsize == 0:
            # through flat bytes: a view cannot widen across the rows of a strided tensor
            return rows.reshape(-1).view(torch.uint8).view(dtype).view(rows.shape[0], -1)
    return rows.reshape(-1).view(torch.uint8).view(rows.shape[0], nbytes)


def unique_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.unique_rows``; waits once, for the number of distinct rows."""
    if rows.numel() == 0:
        index = torch.zeros(rows.shape[0], dtype=torch.int32, device=rows.device)
        return index, torch.zeros(min(1, rows.shape[0]), dtype=torch.int64, device=rows.device)
    found = number_rows([as_words(rows)])
    return found.index, found.first[: int(found.ends[-1])]
