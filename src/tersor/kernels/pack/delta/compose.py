"""Differences of neighbours as a composition of smaller operations, which choose their own backend."""

from __future__ import annotations

import torch

from tersor.kernels.pack.blocks import pack, unpack
from tersor.kernels.predict import lorenzo_residual, lorenzo_restore
from tersor.kernels.quantize import Grid, bounded_dequantize, bounded_quantize


def delta_pack(
    x: torch.Tensor, grid: Grid, block: int = 32, lead: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed residuals of the flattened codes of ``x``, and the positions of the outliers."""
    codes, positions = bounded_quantize(x, grid)
    return pack(lorenzo_residual(codes, 1), block, False, lead), positions


def delta_unpack(body: torch.Tensor, step: float, out: torch.Tensor, block: int = 32) -> int:
    """Write the decoded values into the contiguous ``out``; return the body bytes read."""
    residuals, nbytes = unpack(body, out.numel(), block)
    bounded_dequantize(lorenzo_restore(residuals, 1), step, out)
    return int(nbytes)
