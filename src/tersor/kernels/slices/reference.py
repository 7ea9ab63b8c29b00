"""Lists of slices, plain torch: one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.kernels.op import use_backend
from tersor.kernels.payload.plain import Encoded
from tersor.kernels.slices.composition import pack_slice, unpack_slice
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
