"""Rows, plain torch: the composition of the reference operations."""

from __future__ import annotations

import torch

from tersor.kernels.op import use_backend
from tersor.kernels.rows import composition
from tersor.kernels.rows.composition import Coder, Encoded
from tersor.types import Bound


def encode_rows(
    x: torch.Tensor, bound: Bound, coder: Coder = "huffman", lead: int = 0
) -> Encoded | None:
    """See ``composition.encode_rows``."""
    with use_backend("reference"):
        return composition.encode_rows(x, bound, coder, lead)


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
