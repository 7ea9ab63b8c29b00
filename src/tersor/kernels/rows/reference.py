"""Rows, plain torch: the composition of the reference operations."""

from __future__ import annotations

import torch

from tersor.kernels.op import use_backend
from tersor.kernels.quantize import Grid
from tersor.kernels.rows import composition
from tersor.kernels.rows.composition import Coder


def encode_rows(
    x: torch.Tensor, grid: Grid, coder: Coder = "huffman"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``composition.encode_rows``."""
    with use_backend("reference"):
        return composition.encode_rows(x, grid, coder)


def decode_rows(
    data: torch.Tensor,
    step: float,
    positions: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    coder: Coder = "huffman",
) -> int:
    """See ``composition.decode_rows``."""
    with use_backend("reference"):
        return composition.decode_rows(data, step, positions, values, out, coder)
