"""Payloads as compositions of smaller operations; these choose their own backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.kernels.pack.blocks import quantize_pack, unpack_dequantize
from tersor.kernels.payload.layout import HEADER
from tersor.kernels.payload.plain import decode_if_plain, seal_if_plain
from tersor.kernels.quantize import Grid, finite_range
from tersor.kernels.quantize.encoded import Encoded
from tersor.kernels.rows import decode_rows, encode_rows
from tersor.kernels.rows.compose import Coder
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


def encode_row_slice(
    x: torch.Tensor, bound: Bound, coder: Coder = "huffman"
) -> torch.Tensor | Encoded | None:
    """Encode one matrix of a list; see ``reference.encode_row_slices``."""
    return seal_if_plain(x, encode_rows(x, bound, coder, HEADER.size))


def decode_row_slice(payload: torch.Tensor, out: torch.Tensor, coder: Coder = "huffman") -> bool:
    """Decode one plain payload of a list; see ``reference.decode_row_slices``."""

    def decode(body: torch.Tensor, step: float) -> int:
        none = torch.empty(0, dtype=torch.int64, device=out.device)
        nbytes: int = decode_rows(body, step, none, out.new_empty(0), out, coder)
        return nbytes

    return decode_if_plain(payload, out, decode)


def encode_row_slices(
    xs: Sequence[torch.Tensor], bound: Bound, coder: Coder = "huffman"
) -> list[torch.Tensor | Encoded | None]:
    """See ``reference.encode_row_slices``."""
    return [encode_row_slice(x, bound, coder) for x in xs]


def decode_row_slices(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], coder: Coder = "huffman"
) -> list[bool]:
    """See ``reference.decode_row_slices``."""
    return [decode_row_slice(*pair, coder) for pair in zip(payloads, outs, strict=True)]
