"""Rows, plain torch: the compose of the reference operations."""

from __future__ import annotations

import torch

from tersor.kernels.quantize.encoded import Encoded
from tersor.kernels.rows import compose
from tersor.kernels.rows.compose import Coder
from tersor.kernels.runtime.op import use_backend
from tersor.types import Bound


def encode_rows(
    x: torch.Tensor, bound: Bound, coder: Coder = "huffman", lead: int = 0
) -> Encoded | None:
    """See ``compose.encode_rows``."""
    with use_backend("reference"):
        return compose.encode_rows(x, bound, coder, lead)


def decode_rows(
    data: torch.Tensor,
    step: float,
    positions: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    coder: Coder = "huffman",
) -> int:
    """See ``compose.decode_rows``."""
    with use_backend("reference"):
        return compose.decode_rows(data, step, positions, values, out, coder)
