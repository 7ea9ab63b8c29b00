"""Payloads of lists of tensors, plain torch: one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.kernels.batch.compose import (
    decode_row_slice,
    encode_row_slice,
    pack_slice,
    unpack_slice,
)
from tersor.kernels.quantize.encoded import Encoded
from tersor.kernels.rows.compose import Coder
from tersor.kernels.runtime.op import use_backend
from tersor.types import Bound


def pack_slices(
    xs: Sequence[torch.Tensor], bound: Bound, block: int = 32
) -> list[torch.Tensor | Encoded | None]:
    """Quantize each tensor on the grid of its own range and pack its codes.

    Args:
        xs: contiguous floats of any shapes.
        bound: absolute, or relative to the range of each tensor.
        block: codes that share a width, 32 or 64.

    Returns:
        For each tensor its payload, uint8, if that is plain and smaller than the tensor; else what
        there is to make one of, with zeros for the header before the body; None if the tensor is
        empty or no grid can keep the bound. Payloads may be views of one buffer.
    """
    with use_backend("reference"):
        return [pack_slice(x, bound, block) for x in xs]


def unpack_slices(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], block: int = 32
) -> list[bool]:
    """Decode plain payloads into contiguous tensors; say of each whether that was done.

    Where not, the payload is not plain or not well formed, and its tensor undefined.
    """
    with use_backend("reference"):
        return [unpack_slice(*pair, block) for pair in zip(payloads, outs, strict=True)]


def encode_row_slices(
    xs: Sequence[torch.Tensor], bound: Bound, coder: Coder = "huffman"
) -> list[torch.Tensor | Encoded | None]:
    """Do what ``rows.encode_rows`` does for each matrix of a list.

    Returns:
        For each matrix its payload, uint8, if that is plain and smaller than the matrix; else what
        there is to make one of, with zeros for the header before the body; None if no grid can keep
        the bound. Payloads may be views of one buffer.
    """
    with use_backend("reference"):
        return [encode_row_slice(x, bound, coder) for x in xs]


def decode_row_slices(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], coder: Coder = "huffman"
) -> list[bool]:
    """Decode plain payloads into contiguous matrices; say of each whether that was done.

    Where not, the payload is not plain or not well formed, and its matrix undefined.
    """
    with use_backend("reference"):
        pairs = zip(payloads, outs, strict=True)
        return [decode_row_slice(*pair, coder) for pair in pairs]
