"""Ranges and bounded quantization in plain torch."""

from __future__ import annotations

import torch

from tersor.kernels.quantize.grid import Grid


def finite_range(x: torch.Tensor) -> torch.Tensor:
    """Return ``[low, high]`` of the finite values as float64; ``[inf, -inf]`` if there are none.

    Example:
        >>> finite_range(torch.tensor([3.0, float("nan"), -1.0, float("inf")])).tolist()
        [-1.0, 3.0]
    """
    finite = x[torch.isfinite(x)]
    if finite.numel() == 0:
        return torch.tensor([torch.inf, -torch.inf], dtype=torch.float64, device=x.device)
    # + 0.0 turns -0.0 into 0.0, so that every backend gives the same bits
    return torch.stack([finite.min(), finite.max()]).to(torch.float64) + 0.0


def bounded_quantize(x: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of all values and the positions of the outliers, which need exact storage.

    A value is an outlier if it is not finite, its code lies beyond the radius, or its decoded
    value, rounded to ``x.dtype``, misses the bound. The code of an outlier is 0.

    Args:
        x: float32, float64, float16 or bfloat16, any shape.
        grid: step and bound to use.

    Returns:
        The codes, int32 and flat, and the positions, int64 and ascending.

    Example:
        >>> grid = Grid.for_bound(0.5, torch.float32)
        >>> codes, positions = bounded_quantize(torch.tensor([0.2, 3.9, float("nan")]), grid)
        >>> codes.tolist(), positions.tolist()
        ([0, 4, 0], [2])
    """
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    values = x.reshape(-1).to(compute)
    # multiply by the reciprocal, not divide: triton's float32 "/" is not correctly rounded
    scaled = torch.round(values * grid.inverse)
    decoded = (scaled * grid.step).to(x.dtype).to(compute)
    # NaN compares false, so it is an outlier
    holds = ((values - decoded).abs() <= grid.bound) & (scaled.abs() <= grid.radius)
    codes = torch.where(holds, scaled, torch.zeros_like(scaled)).to(torch.int32)
    return codes, torch.nonzero(~holds).view(-1)


def bounded_dequantize(codes: torch.Tensor, step: float, out: torch.Tensor) -> None:
    """Write ``codes * step``, rounded to ``out.dtype``, into the contiguous ``out``."""
    compute = torch.float64 if out.dtype == torch.float64 else torch.float32
    out.copy_((codes.to(compute) * step).view(out.shape))
