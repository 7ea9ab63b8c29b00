"""Restoring the values of ``ans`` from decoded residuals in Triton.

A code is the sum of the residuals up to its position along every axis, modulo 2**32. The residuals of a float32
tensor lie in its output: the program that reads them also writes there, and no other program reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.gpu.packed_boxes import axes_of, num_axes, restore_boxes
from tersor.kernels.payload.gpu.open import open_payload
from tersor.kernels.payload.gpu.plan import CODED
from tersor.kernels.quantize.gpu.values import (
    as_compute,
    dequantize_values,
    load_values,
    store_values,
)
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import I32, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, sum_before, tile_table

TILE: Final = 4096
"""Residuals that one program sums."""


@jit_kernel()
def _sum_kernel(residuals, counts, first_tiles, owners, sums, TILE: tl.constexpr):
    """One program sums the residuals of one tile, also if the tensor is not coded."""
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    position = (tile - tl.load(first_tiles + k)) * TILE + tl.arange(0, TILE)
    found = load_values(tl.load(residuals + k), position, tl.load(counts + k), 0, I32, False, False)
    # 64 bits, because data that are not residuals may exceed 32
    tl.store(sums + tile, tl.sum(found.to(tl.int64), axis=0))


@triton.jit
def _restore_tile(
    source, target, position, count, before, step, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr, IS_LINE: tl.constexpr,
):  # fmt: skip
    """Write the values of a tile; ``before`` is the code before its first value."""
    codes = load_values(source, position, count, 0, I32, ALIGNED, WHOLE)
    if IS_LINE:
        codes = tl.cumsum(codes, axis=0) + before
    values = dequantize_values(codes, step, TYPE, False)
    store_values(target, position, values, count, TYPE, ALIGNED, WHOLE)


@jit_kernel(do_not_specialize=["buffer"])
def _restore_kernel(
    buffer, offsets, sizes, residuals, targets, counts, first_tiles, owners, ends, status,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, IS_LINE: tl.constexpr,
):  # fmt: skip
    """One program writes the values of one tile, if its tensor is coded.

    With ``IS_LINE``, ``ends`` are prefix sums over the tiles of all tensors; otherwise residuals are codes.
    """
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    count, first = tl.load(counts + k), tl.load(first_tiles + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, _, _, good = open_payload(payload, tl.load(sizes + k), count, TYPE)
    if good & (mode == CODED) & (tl.load(status + k) == 0):
        position = (tile - first) * TILE + tl.arange(0, TILE)
        source, target = tl.load(residuals + k), tl.load(targets + k)
        before, step = 0, as_compute(number, TYPE)
        if IS_LINE:
            before = (sum_before(ends, tile) - sum_before(ends, first)).to(tl.int32)
        if (tile + 1 - first) * TILE <= count:
            _restore_tile(
                source, target, position, count, before, step, TYPE, ALIGNED, True, IS_LINE
            )
        else:
            _restore_tile(
                source, target, position, count, before, step, TYPE, ALIGNED, False, IS_LINE
            )


def _restore_line(
    buffer: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor, residuals: torch.Tensor,
    outs: Sequence[torch.Tensor], status: torch.Tensor, is_line: bool,
) -> None:  # fmt: skip
    """Implement ``restore`` for tensors that are one line each, or have no predicting axis."""
    device, ends = buffer.device, None
    tiles = tile_table(tuple(out.numel() for out in outs), TILE, device)
    if is_line:
        sums = torch.empty(tiles.num_tiles, dtype=torch.int64, device=device)
        _sum_kernel[(tiles.num_tiles,)](
            residuals, tiles.counts, tiles.first_tiles, tiles.owners, sums, TILE=TILE
        )
        ends = torch.cumsum(sums, 0, out=sums)
    _restore_kernel[(tiles.num_tiles,)](
        buffer, offsets, sizes, residuals, addresses(outs, device), tiles.counts,
        tiles.first_tiles, tiles.owners, ends, status, TYPE=TYPES[outs[0].dtype],
        ALIGNED=are_aligned(outs), TILE=TILE, IS_LINE=is_line,
    )  # fmt: skip


def restore(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    residuals: torch.Tensor,
    outs: Sequence[torch.Tensor],
    status: torch.Tensor,
    dims: int,
) -> None:
    """Write the values of the payloads that are coded and whose ``status`` is 0.

    Args:
        buffer: the payloads, as in ``ans_decode.decode_ans``.
        offsets: starts of the payloads.
        sizes: sizes of the payloads.
        residuals: int64 [len(outs)], addresses of the int32 residuals of each tensor, multiples of 16; in float32 they
            may be those of the tensors.
        outs: tensors to write.
        status: int32 [len(outs)].
        dims: number of predicting axes, 1 to 3.
    """
    device = buffer.device
    shapes = [axes_of(tuple(out.shape), dims) for out in outs]
    axes = [num_axes(shape) for shape in shapes]
    for num in sorted(set(axes)):
        chosen = [k for k, found in enumerate(axes) if found == num]
        some, parts = [outs[k] for k in chosen], (offsets, sizes, residuals, status)
        own_offsets, own_sizes, own_residuals, own = parts
        if len(chosen) < len(outs):
            members = on_device(tuple(chosen), device)
            own_offsets, own_sizes, own_residuals, own = (part[members] for part in parts)
        places = own_offsets, own_sizes, own_residuals
        if num < 2:
            _restore_line(buffer, *places, some, own, num == 1)
        else:
            restore_boxes(buffer, *places, some, own, [shapes[k] for k in chosen])
