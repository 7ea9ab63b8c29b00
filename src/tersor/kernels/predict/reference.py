"""Lorenzo prediction in plain torch.

Prediction in ``dims`` dimensions takes differences along each of the last ``dims`` axes, and restoring
takes prefix sums along each. A GPU does both in parallel.
"""

from __future__ import annotations

import torch


def lorenzo_residual(codes: torch.Tensor, dims: int) -> torch.Tensor:
    """Return ``codes`` minus their prediction from lower neighbours, int32 with wraparound.

    Args:
        codes: int32 with at least ``dims`` axes; may be overwritten.
        dims: number of trailing axes that predict, 1 to 3; leading axes are independent.

    Example:
        >>> lorenzo_residual(torch.tensor([[1, 2], [4, 6]], dtype=torch.int32), 2).tolist()
        [[1, 1], [3, 1]]
    """
    for axis in range(-dims, 0):
        zeros = torch.zeros_like(codes.narrow(axis, 0, min(1, codes.shape[axis])))
        codes = torch.diff(codes, dim=axis, prepend=zeros)
    return codes


def lorenzo_restore(residual: torch.Tensor, dims: int) -> torch.Tensor:
    """Invert ``lorenzo_residual``; ``residual`` may be overwritten."""
    for axis in range(-dims, 0):
        residual = torch.cumsum(residual, dim=axis, dtype=torch.int32)
    return residual
