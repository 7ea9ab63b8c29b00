"""Tables on the device that let one launch work on the rows of many matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.rows import layout
from tersor.kernels.rows.dedup.gpu.slots import ROWS, RowLayout, member_tiles, row_layout
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.tiles import TileTable

_PROGRAMS: Final = 2112
"""Programs that share the tiles of all matrices: 16 for each of an H200's 132 multiprocessors."""
_MAX_COLUMNS: Final = 512


@dataclass(frozen=True, slots=True)
class WidthGroup:
    """The matrices of one width.

    Attributes:
        width: values per row.
        rows_per_matrix: number of rows of every matrix in the list, 0 for matrices of another width.
        members: int64, indices of these matrices in the list.
        num_members: number of these matrices.
        tiles: tiles of ``dedup.gpu.slots.ROWS`` rows.
    """

    width: int
    rows_per_matrix: tuple[int, ...]
    members: torch.Tensor
    num_members: int
    tiles: TileTable

    def tile(self, num_values: int, width: int) -> tuple[int, int]:
        """Return the rows and columns, powers of two, of a tile of at most ``num_values`` values.

        ``width`` is the number of values, or of words, per row.
        """
        columns = min(_MAX_COLUMNS, num_values, triton.next_power_of_2(width))
        most_rows = triton.next_power_of_2(max(self.rows_per_matrix))
        return min(num_values // columns, most_rows), columns

    def grid(self, rows: int, columns: int, width: int) -> tuple[int, int]:
        """Return a grid of programs that share the tiles of each matrix."""
        num_tiles = ceil_div(max(self.rows_per_matrix), rows) * ceil_div(width, columns)
        return self.num_members, programs_each(self.num_members, num_tiles)


@dataclass(frozen=True, slots=True)
class MatrixList:
    """The shapes of a list of matrices; empty ones count as having no rows.

    ``starts``, ``codes_nbytes``, ``nbytes`` and ``symbols`` describe a buffer for symbols. Its first part
    has one byte per value of each matrix. If indices may be coded, a second part has one int16 per row.

    Attributes:
        numels: int64, number of values of each matrix.
        widths: int64, values per row of each matrix.
        rows: layout of buffers with numbers of rows.
        capacities: number of values of each matrix, on the host.
        starts: int64, the first byte of each matrix in the first part, then in the second, if there is
            one; multiples of 16.
        codes_nbytes: size of the first part.
        nbytes: size of the whole buffer.
        symbols: the largest number of symbols of each stream: one per entry of ``starts``.
        most_index_symbols: largest alphabet of a coded index; 0 if none may be coded.
        groups: the matrices by width, without empty ones.
    """

    numels: torch.Tensor
    widths: torch.Tensor
    rows: RowLayout
    capacities: tuple[int, ...]
    starts: torch.Tensor
    codes_nbytes: int
    nbytes: int
    symbols: tuple[int, ...]
    most_index_symbols: int
    groups: tuple[WidthGroup, ...]

    def __len__(self) -> int:
        """Return the number of matrices."""
        return len(self.capacities)

    @property
    def num_indices(self) -> int:
        """Return how many indices have a stream of symbols: one for each matrix, or none."""
        return len(self.symbols) - len(self)

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all matrices."""
        return sum(self.rows.rows_per_matrix)


@triton.jit
def index_symbols(memory, starts, num_matrices, k, EXIST: tl.constexpr):
    """Return a pointer to the int16 index symbols of matrix ``k`` in the buffer of a ``MatrixList``.

    If they do not ``EXIST``, the pointer must not be used.
    """
    if EXIST:
        memory += tl.load(starts + num_matrices + k)
    return memory.to(tl.pointer_type(tl.int16))


def programs_each(num_tensors: int, num_tiles: int) -> int:
    """Return how many programs share the tiles of each tensor, which has at most ``num_tiles`` of them."""
    return max(1, min(num_tiles, _PROGRAMS // num_tensors))


def _starts(sizes: Iterable[int], unit: int) -> list[int]:
    """Return the exclusive prefix sums of sizes, each rounded up to a multiple of ``unit``, then the total."""
    return list(accumulate((ceil_div(size, unit) * unit for size in sizes), initial=0))


@cached_on_stream
def matrix_list(shapes: tuple[tuple[int, int], ...], device: torch.device) -> MatrixList:
    """Return the tables of contiguous matrices of these shapes."""
    numels = tuple(num_rows * width for num_rows, width in shapes)
    rows_per_matrix = tuple(num_rows if width else 0 for num_rows, width in shapes)
    groups = []
    for width in sorted({width for (_, width), numel in zip(shapes, numels, strict=True) if numel}):
        members = [k for k, numel in enumerate(numels) if numel and shapes[k][1] == width]
        chosen = tuple(
            num_rows if shapes[k][1] == width else 0 for k, num_rows in enumerate(rows_per_matrix)
        )
        table = to_device_async(members, torch.int64, device)
        tiles = member_tiles(chosen, ROWS, device)
        groups.append(WidthGroup(width, chosen, table, len(members), tiles))
    most_symbols = max(map(layout.most_coded_symbols, set(rows_per_matrix)))
    indices = rows_per_matrix if most_symbols else ()
    starts = _starts([*numels, *(2 * num_rows for num_rows in indices)], 16)
    return MatrixList(
        to_device_async(numels, torch.int64, device),
        to_device_async([width for _, width in shapes], torch.int64, device),
        row_layout(rows_per_matrix, device),
        numels,
        to_device_async(starts[:-1], torch.int64, device),
        starts[len(shapes)],
        starts[-1],
        (*numels, *indices),
        most_symbols,
        tuple(groups),
    )


def shapes_of(matrices: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Return the number of rows and the width of each matrix."""
    return tuple((matrix.shape[0], matrix.shape[1]) for matrix in matrices)
