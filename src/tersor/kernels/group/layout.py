"""The payload size of groups, their outputs, and which group sizes one GPU program holds whole."""

from __future__ import annotations

from typing import Final

import torch

from tersor.division import ceil_div
from tersor.raw_bytes import empty

SCALE_NBYTES: Final = 4
"""Size of the float32 scale of a group."""
_MAX_WHOLE_GROUP: Final = 4096
"""The largest group that one program holds: 64 rows of each half take two warps."""


def is_held_whole(group: int) -> bool:
    """True if one GPU program holds whole groups of this size."""
    return 32 <= group <= _MAX_WHOLE_GROUP and group & (group - 1) == 0


def payload_nbytes(numel: int, nbits: int, group: int) -> int:
    """Return the bytes that the scales and fields of ``numel`` values take."""
    return ceil_div(numel, group) * (SCALE_NBYTES + group * nbits // 8)


def outputs(
    rows: tuple[int, ...],
    num_groups: int,
    nbits: int,
    group: int,
    out: tuple[torch.Tensor, torch.Tensor] | None,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales and data of ``out``, viewed as ``num_groups`` groups per row, or new ones.

    A wrong size raises in the view.
    """
    shapes = (*rows, num_groups), (*rows, num_groups * group * nbits // 8)
    if out is None:
        return empty(shapes[0], torch.float32, device), empty(shapes[1], torch.uint8, device)
    scales, data = out
    # a view costs the host a microsecond
    scales = scales if scales.shape == shapes[0] else scales.view(shapes[0])
    return scales, data if data.shape == shapes[1] else data.view(shapes[1])


def _check_rows(x: torch.Tensor) -> None:
    if x.dim() > 3:
        raise ValueError(f"groups take at most three dimensions, not {x.dim()}")
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError("the values of a row must follow each other")


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    """View [..., n] with at most two leading dimensions as [num_outer, num_inner, n].

    Raises:
        ValueError: there are more dimensions, or a row is not contiguous.
    """
    _check_rows(x)
    while x.dim() < 3:
        x = x.unsqueeze(0)
    return x


def row_strides(x: torch.Tensor) -> tuple[int, int]:
    """Return the outer and inner strides of the rows of ``as_matrix``; 0 for a dimension of size 1.

    A single row has its size as its stride. If that is odd, a compiler would assume unaligned rows and
    emit narrow loads.

    Raises:
        ValueError: there are more dimensions, or a row is not contiguous.
    """
    _check_rows(x)
    shape, strides = x.shape, x.stride()
    inner = strides[-2] if len(shape) > 1 and shape[-2] != 1 else 0
    return strides[-3] if len(shape) > 2 and shape[-3] != 1 else 0, inner
