"""Finite range, plain torch."""

import torch


def finite_range(x: torch.Tensor) -> torch.Tensor:
    """Return ``[low, high]`` of the finite values as float64; ``[inf, -inf]`` if there are none.

    Example:
        >>> finite_range(torch.tensor([3.0, float("nan"), -1.0, float("inf")])).tolist()
        [-1.0, 3.0]
    """
    finite = x[torch.isfinite(x)]
    if finite.numel() == 0:
        return torch.tensor([torch.inf, -torch.inf], dtype=torch.float64, device=x.device)
    # + 0.0 makes a signed zero positive, so that every backend gives the same bits
    return torch.stack([finite.min(), finite.max()]).to(torch.float64) + 0.0
