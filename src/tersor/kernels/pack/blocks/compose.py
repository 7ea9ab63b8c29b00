"""Quantization and packing in one operation, as the composition that defines the result."""

from __future__ import annotations

import torch

from tersor.kernels.pack.blocks import pack, unpack
from tersor.kernels.quantize import Grid, bounded_dequantize, bounded_quantize


def quantize_pack(
    x: torch.Tensor, grid: Grid, block: int = 32, base: bool = False, lead: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed body of ``x``'s codes and the positions of the outliers."""
    codes, positions = bounded_quantize(x, grid)
    return pack(codes, block, base, lead), positions


def unpack_dequantize(
    body: torch.Tensor, step: float, out: torch.Tensor, block: int = 32, base: bool = False
) -> int:
    """Write the decoded values into the contiguous ``out``; return the body bytes read."""
    codes, nbytes = unpack(body, out.numel(), block, base)
    bounded_dequantize(codes, step, out)
    return int(nbytes)
