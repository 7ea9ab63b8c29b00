"""Rows, plain torch: the composition of the reference operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.kernels.op import use_backend
from tersor.kernels.payload.plain import Encoded
from tersor.kernels.rows import composition
from tersor.kernels.rows.composition import Coder
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


def encode_row_slices(
    xs: Sequence[torch.Tensor], bound: Bound, coder: Coder = "huffman"
) -> list[torch.Tensor | Encoded | None]:
    """Do what ``encode_rows`` does for each matrix of a list.

    Returns:
        For each matrix its payload, uint8, if that is plain and smaller than the matrix; else what
        there is to make one of, with zeros for the header before the body; None if no grid can keep
        the bound. Payloads may be views of one buffer.
    """
    with use_backend("reference"):
        return [composition.encode_row_slice(x, bound, coder) for x in xs]


def decode_row_slices(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], coder: Coder = "huffman"
) -> list[bool]:
    """Decode plain payloads into contiguous matrices; say of each whether that was done.

    Where not, the payload is not plain or not well formed, and its matrix undefined.
    """
    with use_backend("reference"):
        pairs = zip(payloads, outs, strict=True)
        return [composition.decode_row_slice(*pair, coder) for pair in pairs]
