"""Quantization of the distinct rows of a list of matrices to bytes in Triton, and copying those with distinct codes.

Only the device knows the number of rows, so a fixed number of programs shares their tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.quantize.gpu.values import load_values, quantize_values
from tersor.kernels.rows.dedup.gpu.row_words import Words
from tersor.kernels.rows.gpu.index import ABOVE, BELOW, BIAS
from tersor.kernels.rows.gpu.matrices import MatrixList, WidthGroup
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import are_aligned

_TILE_VALUES: Final = 2048
_FAR = tl.constexpr((1 << 31) - 1)
"""Replaces the code of a value that has none; no alphabet reaches this far."""


@triton.jit
def _tile_places(tile, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the rows and columns of a tile of a matrix of ``count`` rows, and which columns exist.

    Beyond the end the last row is repeated, because a mask would split wide loads and stores.
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
def quantize_rows(
    k, part, num_parts, starts, numels, first_rows, first, counts, width, grids, code_starts, codes,
    extents, TYPE: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Quantize every ``num_parts``-th tile of the distinct rows of matrix ``k``.

    Codes are stored modulo 256. ``WHOLE`` says that ``COLUMNS`` divides the width. Without a grid, every
    finite value has code 0.
    """
    count, address, numel = tl.load(counts + k), tl.load(starts + k), tl.load(numels + k)
    step, inverse = tl.load(grids + 3 * k), tl.load(grids + 3 * k + 1)
    bound = tl.load(grids + 3 * k + 2)
    first += tl.load(first_rows + k)
    codes += tl.load(code_starts + k)
    smallest = tl.full([ROWS, COLUMNS], _FAR, tl.int32)
    largest = tl.full([ROWS, COLUMNS], -_FAR, tl.int32)
    for tile in range(part, _num_tiles(count, width, ROWS, COLUMNS), num_parts):
        number, column, known = _tile_places(tile, count, width, ROWS, COLUMNS)
        position = tl.load(first + number)[:, None] * width + column[None, :]
        places = codes + (number[:, None] * width + column[None, :])
        if not WHOLE:
            position = tl.where(known, position, numel)
        values = load_values(address, position, numel, 0.0, TYPE, ALIGNED, WHOLE)
        found, holds = quantize_values(values, step, inverse, bound, TYPE)
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
def copy_unique_rows(
    k, part, num_parts, unique, first_rows, first, code_starts, row_words, codes, symbols,
    WORD: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy every ``num_parts``-th tile of the ``unique`` code rows of matrix ``k`` to ``symbols``."""
    count, start = tl.load(unique + k), tl.load(code_starts + k)
    first += tl.load(first_rows + k)
    source = (codes + start).to(tl.pointer_type(WORD))
    target = (symbols + start).to(tl.pointer_type(WORD))
    for tile in range(part, _num_tiles(count, row_words, ROWS, COLUMNS), num_parts):
        number, column, known = _tile_places(tile, count, row_words, ROWS, COLUMNS)
        row = tl.load(first + number)
        sources = source + (row[:, None] * row_words + column[None, :])
        targets = target + (number[:, None] * row_words + column[None, :])
        if ALIGNED:
            sources, targets = tl.multiple_of(sources, (1, 16)), tl.multiple_of(targets, (1, 16))
        tl.store(targets, tl.load(sources, mask=known, other=0), mask=known)


@jit_kernel()
def _quantize_kernel(
    members, starts, numels, first_rows, first, counts, width, grids, code_starts, codes, extents,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (m, p) quantizes every p-th tile of the distinct rows of one matrix."""
    quantize_rows(
        tl.load(members + tl.program_id(0)), tl.program_id(1), tl.num_programs(1), starts, numels,
        first_rows, first, counts, width, grids, code_starts, codes, extents, TYPE, ALIGNED, WHOLE,
        ROWS, COLUMNS,
    )  # fmt: skip


@jit_kernel()
def _copy_unique_kernel(
    members, unique, first_rows, first, code_starts, row_words, codes, symbols, WORD: tl.constexpr,
    ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (m, p) copies every p-th tile of the unique code rows of one matrix."""
    copy_unique_rows(
        tl.load(members + tl.program_id(0)), tl.program_id(1), tl.num_programs(1), unique,
        first_rows, first, code_starts, row_words, codes, symbols, WORD, ALIGNED, ROWS, COLUMNS,
    )  # fmt: skip


def quantize_distinct(
    matrices: MatrixList,
    group: WidthGroup,
    xs: Sequence[torch.Tensor],
    starts: torch.Tensor,
    first: torch.Tensor,
    counts: torch.Tensor,
    grids: torch.Tensor,
    codes: torch.Tensor,
    extents: torch.Tensor,
) -> None:
    """Quantize the distinct rows of the matrices of one width, without waiting.

    Args:
        matrices: shapes of the whole list.
        group: the matrices of this width.
        xs: all matrices.
        starts: their addresses.
        first: int64, where each distinct row first appears.
        counts: int64, number of distinct rows of each matrix.
        grids: quantization grids; see ``quantize.gpu.grids``.
        codes: uint8, receives the codes of each matrix, modulo 256, at ``MatrixList.starts``.
        extents: int64 [num_matrices, 2], ``BELOW`` and ``ABOVE``; zeros on entry, written.
    """
    dtype = xs[0].dtype
    num_rows, columns = group.tile(_TILE_VALUES, group.width)
    whole = group.width % columns == 0
    _quantize_kernel[group.grid(num_rows, columns, group.width)](
        group.members, starts, matrices.numels, matrices.rows.first_rows, first, counts,
        group.width, grids, matrices.starts, codes, extents, TYPE=TYPES[dtype],
        ALIGNED=are_aligned(xs) and whole and columns % 16 == 0, WHOLE=whole, ROWS=num_rows,
        COLUMNS=columns, num_warps=4,
    )  # fmt: skip


def copy_unique_codes(
    matrices: MatrixList,
    unique: torch.Tensor,
    first: torch.Tensor,
    codes: torch.Tensor,
    symbols: torch.Tensor,
) -> None:
    """Copy the codes of the ``unique`` rows ``first`` of each matrix to ``symbols``, back to back from its start."""
    for group in matrices.groups:
        words = Words.of(group.width, [symbols.data_ptr(), codes.data_ptr()])
        num_rows, columns = group.tile(_TILE_VALUES, words.row_words)
        _copy_unique_kernel[group.grid(num_rows, columns, words.row_words)](
            group.members, unique, matrices.rows.first_rows, first, matrices.starts,
            words.row_words, codes, symbols, WORD=TYPES[words.dtype], ALIGNED=words.aligned,
            ROWS=num_rows, COLUMNS=columns, num_warps=4,
        )  # fmt: skip
