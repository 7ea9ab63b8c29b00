"""Row de-duplication: a repeated row is predicted perfectly by its first occurrence."""

from __future__ import annotations

import torch

from tersor.kernels.dedup import unique_rows
from tersor.stages.raw_bytes import as_bytes


def row_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, values per row): rows run along the last axis; a vector is one row."""
    width = shape[-1] if shape else 1
    numel = torch.Size(shape).numel()
    return (numel // width if width else 0), width


def distinct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index (int32) and first appearance (int64) of the distinct rows of a matrix.

    Rows are compared bit by bit, so equal NaNs are equal and -0.0 differs from 0.0.
    """
    num_rows, width = rows.shape
    row_nbytes = width * rows.element_size()
    index, first = unique_rows(as_bytes(rows).view(num_rows, row_nbytes))
    return index, first
