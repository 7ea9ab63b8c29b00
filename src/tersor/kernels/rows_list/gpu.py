"""Rows payloads of a list of matrices in Triton, entropy-coded by rANS, without a wait.

Encoding reads every value once: rows are numbered by their values, the distinct ones are quantized
to bytes, numbered again by these, and entropy-coded together with the index. How many rows there
are after each step only the device knows, so programs share as many as there turn out to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.dedup.gpu import Ranges, RowNumbers, empty_slots, find_slots, number_slots
from tersor.kernels.finite_range.gpu import TILE as RANGE_TILE
from tersor.kernels.finite_range.gpu import fold_ranges, key_dtype
from tersor.kernels.grids.gpu import grid_table
from tersor.kernels.index_list.gpu import ABOVE, BELOW, BIAS, Decisions, decide, split_index
from tersor.kernels.matrix_list.gpu import MatrixList, WidthGroup, matrices_of
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.quantize.gpu import KINDS, load_values, quantize_values
from tersor.kernels.rans_list.gpu import Streams, encode_streams, place_streams
from tersor.kernels.row_words.gpu import Words
from tersor.kernels.rows_plan.gpu import place_payloads, plan_payloads
from tersor.kernels.tensor_list.gpu import addresses, are_aligned, bound_table, tile_table
from tersor.types import Bound

_TILE_VALUES: Final = 2048
_FAR = tl.constexpr((1 << 31) - 1)
"""In place of the code of a value that has none: no alphabet reaches so far."""


@triton.jit
def _tile_places(tile, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows and columns of a tile of a matrix of ``count`` rows, and which columns exist.

    Beyond the end stands the last row again: a mask would cut wide loads and stores into pieces.
    """
    num_columns = (width + COLUMNS - 1) // COLUMNS
    row = tile // num_columns * ROWS + tl.arange(0, ROWS)
    column = tile % num_columns * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.minimum(row, count - 1)
    return row, column, (column < width)[None, :] & (row >= 0)[:, None]


@triton.jit
def _num_tiles(count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return (count + ROWS - 1) // ROWS * ((width + COLUMNS - 1) // COLUMNS)


@triton.jit
def _quantize_kernel(
    members, starts, numels, first_rows, first, counts, width, grids, code_starts, codes, extents,
    KIND: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (m, p) quantizes every p-th tile of the distinct rows of one matrix.

    Codes are stored modulo 256. ``WHOLE`` says that the columns divide the width. Where there is no
    grid, every finite value has the code 0.
    """
    k = tl.load(members + tl.program_id(0))
    count, address, numel = tl.load(counts + k), tl.load(starts + k), tl.load(numels + k)
    step, inverse = tl.load(grids + 3 * k), tl.load(grids + 3 * k + 1)
    bound = tl.load(grids + 3 * k + 2)
    first += tl.load(first_rows + k)
    codes += tl.load(code_starts + k)
    smallest = tl.full([ROWS, COLUMNS], _FAR, tl.int32)
    largest = tl.full([ROWS, COLUMNS], -_FAR, tl.int32)
    num_tiles = _num_tiles(count, width, ROWS, COLUMNS)
    for tile in range(tl.program_id(1), num_tiles, tl.num_programs(1)):
        number, column, known = _tile_places(tile, count, width, ROWS, COLUMNS)
        position = tl.load(first + number)[:, None] * width + column[None, :]
        places = codes + (number[:, None] * width + column[None, :])
        if not WHOLE:
            position = tl.where(known, position, numel)
        values = load_values(address, position, numel, 0.0, KIND, ALIGNED, WHOLE)
        found, holds = quantize_values(values, step, inverse, bound, KIND)
        holds = tl.where(step > 0, holds, tl.abs(values) < float("inf"))
        lower, upper = tl.where(holds, found, -_FAR), tl.where(holds, found, _FAR)
        octets = (found & 255).to(tl.uint8)
        if WHOLE:
            smallest, largest = tl.minimum(smallest, lower), tl.maximum(largest, upper)
            tl.store(tl.multiple_of(places, (1, 4)) if ALIGNED else places, octets)
        else:
            smallest = tl.where(known, tl.minimum(smallest, lower), smallest)
            largest = tl.where(known, tl.maximum(largest, upper), largest)
            tl.store(places, octets, mask=known)
    low = tl.min(tl.min(smallest, axis=1), axis=0)
    high = tl.max(tl.max(largest, axis=1), axis=0)
    if low <= high:
        tl.atomic_max(extents + 2 * k + BELOW, -low.to(tl.int64) + BIAS, sem="relaxed")
        tl.atomic_max(extents + 2 * k + ABOVE, high.to(tl.int64) + BIAS, sem="relaxed")


@triton.jit
def _keep_kernel(
    members, unique, first_rows, first, code_starts, row_words, codes, kept, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (m, p) copies every p-th tile of the code rows of one matrix that are kept."""
    k = tl.load(members + tl.program_id(0))
    count, start = tl.load(unique + k), tl.load(code_starts + k)
    first += tl.load(first_rows + k)
    source = (codes + start).to(tl.pointer_type(TYPE))
    target = (kept + start).to(tl.pointer_type(TYPE))
    num_tiles = _num_tiles(count, row_words, ROWS, COLUMNS)
    for tile in range(tl.program_id(1), num_tiles, tl.num_programs(1)):
        number, column, known = _tile_places(tile, count, row_words, ROWS, COLUMNS)
        row = tl.load(first + number)
        sources = source + (row[:, None] * row_words + column[None, :])
        targets = target + (number[:, None] * row_words + column[None, :])
        if ALIGNED:
            sources, targets = tl.multiple_of(sources, (1, 16)), tl.multiple_of(targets, (1, 16))
        tl.store(targets, tl.load(sources, mask=known, other=0), mask=known)


@dataclass(frozen=True, slots=True)
class _Quantized:
    """Distinct rows in bytes, and their numbers.

    Attributes:
        codes: uint8, modulo 256.
        extents: int64 [num_matrices, 2], ``BELOW`` and ``ABOVE``.
        by_code: numbers of the distinct rows by their codes.
    """

    codes: torch.Tensor
    extents: torch.Tensor
    by_code: RowNumbers


def _number_by_value(
    matrices: MatrixList, xs: Sequence[torch.Tensor], starts: torch.Tensor, slots: torch.Tensor,
    keys: torch.Tensor,
) -> RowNumbers:  # fmt: skip
    """Number equal rows and fold all values into the ranges ``keys``."""
    rows, dtype = matrices.rows, xs[0].dtype
    counts = rows.tiles.counts
    places = torch.empty(sum(rows.nums_rows), dtype=torch.int32, device=slots.device)
    # a single row is not looked at, and float64 values do not fit the words
    ranges = None
    if dtype != torch.float64 and 1 not in rows.nums_rows:
        ranges = Ranges.of(rows, keys, dtype)
    else:
        tiles = tile_table(matrices.capacities, RANGE_TILE, slots.device)
        fold_ranges(starts, tiles, keys, dtype, are_aligned(xs))
    for group in matrices.groups:
        pointers = [x.data_ptr() for x, num in zip(xs, group.nums_rows, strict=True) if num]
        words = Words.of(group.width * dtype.itemsize, pointers)
        find_slots(rows, group.nums_rows, words, starts, 0, counts, slots, places, ranges)
    return number_slots(rows, counts, slots, places, ranges)


def _quantize(
    matrices: MatrixList, by_value: RowNumbers, xs: Sequence[torch.Tensor], starts: torch.Tensor,
    grids: torch.Tensor, slots: torch.Tensor, extents: torch.Tensor,
) -> _Quantized:  # fmt: skip
    """Quantize the distinct rows and number them by their codes."""
    rows, device = matrices.rows, slots.device
    codes = torch.empty(matrices.codes_nbytes, dtype=torch.uint8, device=device)
    places = torch.empty_like(by_value.places)
    kind, aligned = KINDS[xs[0].dtype], are_aligned(xs)
    for group in matrices.groups:
        num_rows, columns = group.tile(_TILE_VALUES)
        whole = group.width % columns == 0
        _quantize_kernel[group.grid(num_rows, columns)](
            group.members, starts, matrices.numels, rows.first_rows, by_value.first,
            by_value.counts, group.width, grids, matrices.code_starts, codes, extents, KIND=kind,
            ALIGNED=aligned and whole and columns % 16 == 0, WHOLE=whole, ROWS=num_rows,
            COLUMNS=columns, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        words = Words.of(group.width, [codes.data_ptr()])
        find_slots(
            rows, group.nums_rows, words, matrices.code_starts, codes.data_ptr(), by_value.counts,
            slots, places,
        )  # fmt: skip
    return _Quantized(codes, extents, number_slots(rows, by_value.counts, slots, places))


def _keep(matrices: MatrixList, quantized: _Quantized, decisions: Decisions) -> torch.Tensor:
    """Return the codes of the rows that are kept, back to back from each matrix's start on."""
    kept = torch.empty_like(quantized.codes)
    types = {torch.int32: tl.int32, torch.int16: tl.int16, torch.uint8: tl.uint8}
    for group in matrices.groups:
        words = Words.of(group.width, [kept.data_ptr(), quantized.codes.data_ptr()])
        part = WidthGroup(words.row_words, group.nums_rows, group.members, group.num_members)
        num_rows, columns = part.tile(_TILE_VALUES)
        _keep_kernel[part.grid(num_rows, columns)](
            group.members, decisions.unique, matrices.rows.first_rows, quantized.by_code.first,
            matrices.code_starts, words.row_words, quantized.codes, kept, TYPE=types[words.dtype],
            ALIGNED=words.aligned, ROWS=num_rows, COLUMNS=columns, num_warps=4,
        )  # fmt: skip
    return kept


def _code(
    matrices: MatrixList, by_value: RowNumbers, quantized: _Quantized, keys: torch.Tensor,
    grids: torch.Tensor, starts: torch.Tensor, dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Entropy-code and write all payloads; see ``encode_rows_list``."""
    decisions = decide(matrices, quantized.by_code, quantized.extents, grids)
    index = split_index(matrices, by_value, quantized.by_code, decisions)
    index_streams = Streams(
        index.symbols, matrices.symbol_starts, decisions.index_counts, matrices.rows.nums_rows,
        decisions.index_alphabets, matrices.zeros,
    )  # fmt: skip
    row_streams = Streams(
        _keep(matrices, quantized, decisions), matrices.code_starts, decisions.row_counts,
        matrices.capacities, decisions.row_alphabets, decisions.rotations,
    )  # fmt: skip
    coded_index, coded_rows = encode_streams(index_streams), encode_streams(row_streams)
    capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in matrices.capacities)
    out = torch.empty(capacity, dtype=torch.uint8, device=keys.device)
    plan, sizes, status, index_targets, rows_targets = plan_payloads(
        matrices, decisions, coded_index.nbytes, coded_rows.nbytes, quantized.extents, keys, grids,
        out, dtype,
    )  # fmt: skip
    place_payloads(matrices, decisions, index, starts, plan, out, dtype)
    place_streams(index_streams, coded_index, index_targets)
    place_streams(row_streams, coded_rows, rows_targets)
    return out, sizes, status


def encode_rows_list(
    xs: Sequence[torch.Tensor], bounds: Sequence[Bound]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Encode contiguous matrices of one dtype and device into one buffer, without waiting.

    Outliers and more than 256 different codes are beyond it: such a matrix is stored exactly.

    Returns:
        buffer: uint8, payloads back to back, each padded to 8 bytes; what follows is not written.
        sizes: int64 [len(xs)], bytes of each payload.
        status: int32 [len(xs)], 1 where the codec ``rows`` itself may have a smaller payload.
    """
    device, dtype = xs[0].device, xs[0].dtype
    matrices = matrices_of(xs)
    with torch.cuda.device_of(xs[0]):
        starts = addresses(xs, device)
        limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
        # extents and keys of all matrices, zeroed in one launch
        zeroed = torch.zeros(4 * len(xs), dtype=torch.int64, device=device)
        extents, keys = zeroed[: 2 * len(xs)], zeroed[2 * len(xs) :].view(key_dtype(dtype))
        slots, again_slots = empty_slots(matrices.rows, 2, device).unbind(0)
        by_value = _number_by_value(matrices, xs, starts, slots, keys)
        grids = grid_table(keys, limits, dtype)
        quantized = _quantize(matrices, by_value, xs, starts, grids, again_slots, extents)
        return _code(matrices, by_value, quantized, keys, grids, starts, dtype)
