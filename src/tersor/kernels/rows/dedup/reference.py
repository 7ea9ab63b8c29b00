"""Row de-duplication in plain torch."""

from __future__ import annotations

import torch


def unique_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Number the distinct rows in the order in which they first appear.

    Args:
        rows: uint8 [num_rows, row_nbytes]; rows are equal if all their bytes are.

    Returns:
        index: int32 [num_rows], the number of the distinct row that each row equals.
        first: int64 [num_distinct], the row in which each distinct row first appears, ascending.

    Example:
        >>> index, first = unique_rows(torch.tensor([[7], [9], [7]], dtype=torch.uint8))
        >>> index.tolist(), first.tolist()
        ([0, 1, 0], [0, 1])
    """
    num_rows = rows.shape[0]
    if num_rows == 0:
        return rows.new_zeros(0, dtype=torch.int32), rows.new_zeros(0, dtype=torch.int64)
    if rows.shape[1] == 0:
        return rows.new_zeros(num_rows, dtype=torch.int32), rows.new_zeros(1, dtype=torch.int64)
    sorted_rows, inverse = torch.unique(rows, dim=0, return_inverse=True)
    position = torch.arange(num_rows, device=rows.device)
    first = torch.full((len(sorted_rows),), num_rows, dtype=torch.int64, device=rows.device)
    first.scatter_reduce_(0, inverse, position, "amin")
    rank = torch.empty_like(first)
    rank[first.argsort()] = torch.arange(len(first), device=rows.device)
    return rank[inverse].to(torch.int32), first.sort().values
