"""Tables on the device that let one launch work on the rows of many matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
import triton

from tersor.kernels.dedup.gpu import RowList, row_list
from tersor.kernels.kept import kept, uploaded

_PROGRAMS: Final = 2112
"""Programs that share the tiles of all matrices: 16 for each of an H200's 132 multiprocessors."""
_MAX_COLUMNS: Final = 512


@dataclass(frozen=True, slots=True)
class WidthGroup:
    """The matrices of one width.

    Attributes:
        width: values per row.
        nums_rows: rows of every matrix of the list, 0 for those of another width.
        members: int64, which matrices of the list these are.
        num_members: how many.
    """

    width: int
    nums_rows: tuple[int, ...]
    members: torch.Tensor
    num_members: int

    def tile(self, num_values: int) -> tuple[int, int]:
        """Return rows and columns, powers of two, of a tile of ``num_values`` values or fewer."""
        columns = min(_MAX_COLUMNS, num_values, triton.next_power_of_2(self.width))
        most_rows = triton.next_power_of_2(max(self.nums_rows))
        return min(num_values // columns, most_rows), columns

    def grid(self, rows: int, columns: int) -> tuple[int, int]:
        """Return a grid of programs that share the tiles of each matrix."""
        num_tiles = triton.cdiv(max(self.nums_rows), rows) * triton.cdiv(self.width, columns)
        return self.num_members, programs_each(self.num_members, num_tiles)


@dataclass(frozen=True, slots=True)
class MatrixList:
    """The shapes of a list of matrices; empty ones count as having no rows.

    Attributes:
        numels: int64, values of each.
        widths: int64, values per row of each.
        rows: how their rows share memory.
        capacities: values of each, on the host.
        code_starts: int64, the first byte of each in memory for one byte per value: multiples of 16.
        codes_nbytes: size of that memory.
        symbol_starts: int64, the place of each in memory for one int16 per row: multiples of 8.
        num_symbols: places in that memory.
        zeros: int32, one per matrix.
        groups: by width, without empty matrices.
    """

    numels: torch.Tensor
    widths: torch.Tensor
    rows: RowList
    capacities: tuple[int, ...]
    code_starts: torch.Tensor
    codes_nbytes: int
    symbol_starts: torch.Tensor
    num_symbols: int
    zeros: torch.Tensor
    groups: tuple[WidthGroup, ...]

    def __len__(self) -> int:
        """Return the number of matrices."""
        return len(self.capacities)


def programs_each(num_tensors: int, num_tiles: int) -> int:
    """Return how many programs share the tiles, at most ``num_tiles``, of each tensor."""
    return max(1, min(num_tiles, _PROGRAMS // num_tensors))


def _starts(sizes: Iterable[int], unit: int) -> list[int]:
    """Return running sums of sizes, each rounded up to a multiple of ``unit``, then the total."""
    return list(accumulate((triton.cdiv(size, unit) * unit for size in sizes), initial=0))


@kept
def matrix_list(shapes: tuple[tuple[int, int], ...], device: torch.device) -> MatrixList:
    """Return the tables of contiguous matrices of these shapes."""
    numels = tuple(num_rows * width for num_rows, width in shapes)
    nums_rows = tuple(num_rows if width else 0 for num_rows, width in shapes)
    groups = []
    for width in sorted({width for (_, width), numel in zip(shapes, numels, strict=True) if numel}):
        members = [k for k, numel in enumerate(numels) if numel and shapes[k][1] == width]
        chosen = tuple(
            num_rows if shapes[k][1] == width else 0 for k, num_rows in enumerate(nums_rows)
        )
        table = uploaded(members, torch.int64, device)
        groups.append(WidthGroup(width, chosen, table, len(members)))
    codes, symbols = _starts(numels, 16), _starts(nums_rows, 8)
    return MatrixList(
        uploaded(numels, torch.int64, device),
        uploaded([width for _, width in shapes], torch.int64, device),
        row_list(nums_rows, device),
        numels,
        uploaded(codes[:-1], torch.int64, device),
        codes[-1],
        uploaded(symbols[:-1], torch.int64, device),
        symbols[-1],
        torch.zeros(len(shapes), dtype=torch.int32, device=device),
        tuple(groups),
    )


def matrices_of(tensors: Sequence[torch.Tensor]) -> MatrixList:
    """Return the tables of contiguous matrices on one device."""
    shapes = tuple((x.shape[0], x.shape[1]) for x in tensors)
    return matrix_list(shapes, tensors[0].device)
