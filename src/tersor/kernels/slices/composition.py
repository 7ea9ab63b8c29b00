"""One slice as a composition of smaller operations; these choose their own backend."""

from __future__ import annotations

import torch

from tersor.kernels.bitpack import quantize_pack, unpack_dequantize
from tersor.kernels.finite_range import finite_range
from tersor.kernels.payload.layout import HEADER
from tersor.kernels.payload.plain import Encoded, decode_if_plain, seal_if_plain
from tersor.kernels.quantize import Grid
from tersor.types import Bound


def pack_slice(x: torch.Tensor, bound: Bound, block: int = 32) -> torch.Tensor | Encoded | None:
    """Quantize and pack one tensor; see ``reference.pack_slices``."""
    error_bound = bound.value
    if bound.kind == "relative":
        low, high = finite_range(x).tolist()
        error_bound = bound.resolve(low, high) if low <= high else 0.0
    grid = Grid.for_bound(error_bound, x.dtype)
    if grid is None or x.numel() == 0:
        return None
    data, positions = quantize_pack(x, grid, block, False, HEADER.size)
    return seal_if_plain(x, (grid.step, data, positions, x.view(-1)[positions]))


def unpack_slice(payload: torch.Tensor, out: torch.Tensor, block: int = 32) -> bool:
    """Decode one plain payload; see ``reference.unpack_slices``."""

    def unpack(body: torch.Tensor, step: float) -> int:
        nbytes: int = unpack_dequantize(body, step, out, block)
        return nbytes

    return decode_if_plain(payload, out, unpack)
