"""Rows payloads of a list of matrices in Triton, entropy-coded by rANS, without waiting.

Rows are numbered by their values, in one pass over all values that also finds their range. The distinct
rows are quantized to bytes, numbered again by these, and entropy-coded together with the index. Only the
device knows how many rows remain after each step, so a fixed number of programs shares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton.language as tl

from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.rows_plan import PLAN_COLUMNS, PlannedRows, plan_payloads
from tersor.kernels.batch.gpu.rows_tiles import copy_unique_codes, quantize_distinct
from tersor.kernels.entropy.rans.gpu.encode_streams import Streams, count_symbols, encode_streams
from tersor.kernels.entropy.symbols.gpu.histogram import num_counts
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.quantize.gpu.finite_range import TILE as RANGE_TILE
from tersor.kernels.quantize.gpu.finite_range import fold_ranges, key_dtype
from tersor.kernels.quantize.gpu.grids import find_grid, grid_dtype, store_grid
from tersor.kernels.rows.dedup.gpu.numbers import (
    SCAN_STEP,
    SHORT_PARTS,
    RowNumbers,
    count_first_rows,
    fold_matrix,
    number_matrix,
    number_slots,
    short_options,
)
from tersor.kernels.rows.dedup.gpu.row_words import NO_VALUES, Words
from tersor.kernels.rows.dedup.gpu.slots import (
    ROWS,
    ROWS_PER_TILE,
    Ranges,
    clear,
    find_slots,
    num_extremes,
    num_list_slots,
)
from tersor.kernels.rows.gpu.index import (
    MARK_WORDS,
    Decisions,
    SplitIndex,
    split_index,
)
from tersor.kernels.rows.gpu.matrices import MatrixList, matrix_list, shapes_of
from tersor.kernels.runtime.device_cache import cached_on_stream
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    addresses,
    are_aligned,
    bound_table,
    sum_tiles,
    tile_table,
)
from tersor.kernels.runtime.workspace import Layout
from tersor.types import Bound


@jit_kernel()
def _grid_kernel(
    first_tiles, ends, num_distinct, keys, bounds, grids, TYPE: tl.constexpr, LANES: tl.constexpr
):
    """One program sums the numbers of distinct rows of one matrix over its tiles, and computes its grid."""
    k = tl.program_id(0)
    tl.store(num_distinct + k, sum_tiles(ends, first_tiles, k, LANES))
    exists = k >= 0
    store_grid(grids, k, find_grid(keys, bounds, k, exists, TYPE), exists)


@jit_kernel()
def _number_kernel(
    counts, first_tiles, first_rows, tables, slots, places, first, num_distinct, extremes, keys,
    bounds, grids, TYPE: tl.constexpr, NOTED: tl.constexpr, ROWS: tl.constexpr,
    ROWS_PER_TILE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program numbers the rows of one matrix of a short list, and computes its grid.

    ``NOTED`` is the type of the values whose extremes are first folded into the range; ``NO_VALUES`` if there are none.
    """
    k = tl.program_id(0)
    number_matrix(k, counts, first_rows, tables, slots, places, first, num_distinct, TILE)
    if NOTED != NO_VALUES:
        fold_matrix(k, counts, first_tiles, extremes, keys, TYPE, ROWS, ROWS_PER_TILE, PARTS)
    exists = k >= 0
    store_grid(grids, k, find_grid(keys, bounds, k, exists, TYPE), exists)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Memory that is freed once the rows are numbered.

    Attributes:
        slots: int32, the slots of both hash tables.
        extremes: float32; see ``dedup.gpu.slots.Ranges``.
        places: int32 [num_rows]; this and the next three are fields of ``dedup.gpu.numbers.RowNumbers``.
        first: int64 [num_rows].
        ends: int64 [num_tiles].
        num_distinct: int64 [num_matrices].
        again_places: int32 [num_rows]; this and the next three are the same fields for the rows' codes.
        again_first: int64 [num_rows].
        again_ends: int64 [num_tiles].
        num_unique: int64 [num_matrices].
        codes: uint8, the codes of the distinct rows, modulo 256.
    """

    slots: torch.Tensor
    extremes: torch.Tensor
    places: torch.Tensor
    first: torch.Tensor
    ends: torch.Tensor
    num_distinct: torch.Tensor
    again_places: torch.Tensor
    again_first: torch.Tensor
    again_ends: torch.Tensor
    num_unique: torch.Tensor
    codes: torch.Tensor

    def by_value(self) -> RowNumbers:
        """Return the numbers of the rows by their values."""
        slots, _ = self.slots.chunk(2)
        return RowNumbers(slots, self.places, self.first, self.ends, self.num_distinct)

    def by_code(self) -> RowNumbers:
        """Return the numbers of the distinct rows by their codes."""
        _, slots = self.slots.chunk(2)
        return RowNumbers(
            slots, self.again_places, self.again_first, self.again_ends, self.num_unique
        )


@dataclass(frozen=True, slots=True)
class _Coding:
    """Memory that is held until the payloads are written.

    Attributes:
        zeroed: int64, everything that starts at 0: ``extents``, ``keys`` and ``counts`` of ``_Task``.
        marks: int32; this and ``refs`` are fields of ``rows.gpu.index.SplitIndex``.
        refs: int32 [num_rows].
        unique: int64 [num_matrices]; this and the next four are fields of ``rows.gpu.index.Decisions``.
        stream_counts: int64 [2 * num_matrices].
        alphabets: int32 [2 * num_matrices].
        rotations: int32 [2 * num_matrices].
        lows: int32 [num_matrices].
        grids: [num_matrices, 3]; see ``quantize.gpu.grids``.
        symbols: uint8, the codes of the rows with different codes, then the symbols of all indices.
        plan: int64; see ``rows_plan``.
    """

    zeroed: torch.Tensor
    marks: torch.Tensor
    refs: torch.Tensor
    unique: torch.Tensor
    stream_counts: torch.Tensor
    alphabets: torch.Tensor
    rotations: torch.Tensor
    lows: torch.Tensor
    grids: torch.Tensor
    symbols: torch.Tensor
    plan: torch.Tensor


@cached_on_stream
def _layouts(
    shapes: tuple[tuple[int, int], ...], dtype: torch.dtype, device: torch.device
) -> tuple[Layout, Layout]:
    """Return the memory layouts of ``_Rows`` and ``_Coding``."""
    matrices = matrix_list(shapes, device)
    rows, num, num_rows = matrices.rows, len(matrices), matrices.num_rows
    num_tiles = rows.tiles.num_tiles
    numbering = {
        "slots": (torch.int32, 2 * num_list_slots(rows)),
        "extremes": (torch.float32, num_extremes(rows)),
        "places": (torch.int32, num_rows),
        "first": (torch.int64, num_rows),
        "ends": (torch.int64, num_tiles),
        "num_distinct": (torch.int64, num),
        "again_places": (torch.int32, num_rows),
        "again_first": (torch.int64, num_rows),
        "again_ends": (torch.int64, num_tiles),
        "num_unique": (torch.int64, num),
        "codes": (torch.uint8, matrices.codes_nbytes),
    }
    coding = {
        "zeroed": (torch.int64, 4 * num + num_counts(num, matrices.num_indices)),
        "marks": (torch.int32, num_tiles * MARK_WORDS),
        "refs": (torch.int32, num_rows),
        "unique": (torch.int64, num),
        "stream_counts": (torch.int64, 2 * num),
        "alphabets": (torch.int32, 2 * num),
        "rotations": (torch.int32, 2 * num),
        "lows": (torch.int32, num),
        "grids": (grid_dtype(dtype), 3 * num),
        "symbols": (torch.uint8, matrices.nbytes),
        "plan": (torch.int64, num * PLAN_COLUMNS),
    }
    return Layout.of(numbering), Layout.of(coding)


@dataclass(frozen=True, slots=True)
class _Task:
    """One encoding call: its inputs and the results of its steps.

    Attributes:
        matrices: shapes of the list.
        xs: contiguous matrices of one dtype.
        starts: int64, their addresses.
        coding: working memory.
        extents: int64 [num_matrices, 2], ``BELOW`` and ``ABOVE``.
        keys: finite ranges, as keys of ``quantize.gpu.finite_range``.
        counts: int64, symbol counts of all streams.
        decisions: what is coded.
        index: the parts of the indices.
    """

    matrices: MatrixList
    xs: Sequence[torch.Tensor]
    starts: torch.Tensor
    coding: _Coding
    extents: torch.Tensor
    keys: torch.Tensor
    counts: torch.Tensor
    decisions: Decisions
    index: SplitIndex

    @classmethod
    def of(cls, xs: Sequence[torch.Tensor]) -> tuple[_Task, _Rows]:
        """Allocate and clear the working memory."""
        device, dtype, num = xs[0].device, xs[0].dtype, len(xs)
        shapes = shapes_of(xs)
        matrices = matrix_list(shapes, device)
        numbering, coding = _layouts(shapes, dtype, device)
        rows, room = _Rows(**numbering.carve(device)), _Coding(**coding.carve(device))
        clear(rows.slots, room.zeroed)
        extents, keys, counts = room.zeroed.split_with_sizes(
            [2 * num, 2 * num, room.zeroed.numel() - 4 * num]
        )
        decisions = Decisions(
            room.unique, room.stream_counts, room.alphabets, room.rotations, room.lows
        )
        task = cls(
            matrices, xs, addresses(xs, device), room, extents, keys.view(key_dtype(dtype)), counts,
            decisions, SplitIndex(room.marks, room.refs),
        )  # fmt: skip
        return task, rows


def _number_by_value(
    task: _Task, numbers: RowNumbers, extremes: torch.Tensor, bounds: torch.Tensor
) -> None:
    """Number distinct rows, compute the ranges of all values, and compute the grids."""
    rows, dtype, grids = task.matrices.rows, task.xs[0].dtype, task.coding.grids
    tiles, counts = rows.tiles, rows.tiles.counts
    # find_slots does not read a single row, and its words do not hold float64 values
    ranges = None
    if dtype != torch.float64 and 1 not in rows.rows_per_matrix:
        ranges = Ranges(task.keys, extremes, dtype)
    else:
        table = tile_table(task.matrices.capacities, RANGE_TILE, counts.device)
        fold_ranges(task.starts, table, task.keys, dtype, are_aligned(task.xs))
    for group in task.matrices.groups:
        pointers = [
            x.data_ptr() for x, num in zip(task.xs, group.rows_per_matrix, strict=True) if num
        ]
        words = Words.of(group.width * dtype.itemsize, pointers)
        find_slots(
            rows, group.tiles, words, task.starts, 0, counts, numbers.slots, numbers.places, ranges
        )
    if rows.is_short:
        _number_kernel[(len(task.matrices),)](
            counts, tiles.first_tiles, rows.first_rows, rows.tables, numbers.slots, numbers.places,
            numbers.first, numbers.counts, extremes, task.keys, bounds, grids, TYPE=TYPES[dtype],
            NOTED=NO_VALUES if ranges is None else TYPES[dtype], ROWS=ROWS,
            ROWS_PER_TILE=ROWS_PER_TILE, PARTS=SHORT_PARTS, **short_options(rows),
        )  # fmt: skip
        return
    count_first_rows(rows, counts, numbers, ranges)
    _grid_kernel[(len(task.matrices),)](
        tiles.first_tiles, numbers.ends, numbers.counts, task.keys, bounds, grids,
        TYPE=TYPES[dtype], LANES=SCAN_STEP,
    )  # fmt: skip
    number_slots(rows, counts, numbers)


def _find_symbols(xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> _Task:
    """Number, quantize and split the rows; the memory for this is free afterwards."""
    task, rows = _Task.of(xs)
    limits = tuple((bound.value, bound.kind == "relative") for bound in bounds)
    matrices, by_value, by_code = task.matrices, rows.by_value(), rows.by_code()
    _number_by_value(task, by_value, rows.extremes, bound_table(limits, xs[0].device))
    for group in matrices.groups:
        quantize_distinct(
            matrices, group, xs, task.starts, by_value.first, by_value.counts, task.coding.grids,
            rows.codes, task.extents,
        )  # fmt: skip
        words = Words.of(group.width, [rows.codes.data_ptr()])
        find_slots(
            matrices.rows, group.tiles, words, matrices.starts, rows.codes.data_ptr(),
            by_value.counts, by_code.slots, by_code.places,
        )  # fmt: skip
    split_index(
        matrices, by_value, by_code, task.extents, task.coding.grids, task.decisions,
        task.index, task.coding.symbols,
    )  # fmt: skip
    copy_unique_codes(
        matrices, task.decisions.num_distinct, by_code.first, rows.codes, task.coding.symbols
    )
    return task


def encode_rows_list(xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> FusedList:
    """Encode contiguous matrices of one dtype and device, without waiting.

    A matrix with outliers or more than 256 different codes is stored exactly. It needs a second pass if the
    composition may find a smaller payload.
    """
    dtype = xs[0].dtype
    with torch.cuda.device_of(xs[0]):
        task = _find_symbols(xs, bounds)
        matrices, coding, decisions = task.matrices, task.coding, task.decisions
        streams = Streams(
            coding.symbols, matrices.starts, decisions.counts, matrices.symbols,
            decisions.alphabets, decisions.rotations, len(matrices), matrices.codes_nbytes,
            most_wide=matrices.most_index_symbols,
        )  # fmt: skip
        count_symbols(streams, task.counts)
        encoded = encode_streams(streams, task.counts)
        sizes, status = plan_payloads(
            matrices, decisions.num_distinct, encoded.nbytes, task.extents, task.keys, coding.grids,
            dtype, coding.plan,
        )  # fmt: skip
    planned = PlannedRows(xs, matrices, decisions, task.index, streams, encoded, coding.plan)
    capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in matrices.capacities)
    unwritten = Unwritten(capacity, xs, None, planned.write)
    return FusedList(sizes, unwritten, status, task.keys[: 2 * len(xs)])
