"""Casts of a list of tensors to narrower floats in Triton; each program handles one tile of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.pipeline import CastPipeline, ScaledCastPipeline
from tersor.kernels.group.cast.gpu import cast_groups, tile_of, uncast_groups
from tersor.kernels.group.cast.layout import payload_nbytes
from tersor.kernels.payload.gpu.fixed_size import (
    PAYLOAD_ALIGNMENT,
    FixedFrame,
    common_alignment,
    decode_tiles,
    encode_tiles,
    fixed_frame,
    given_payload,
    new_payload,
    own_tile,
    typed,
)
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import num_parts
from tersor.kernels.transform.gpu import load_values, store_values

_TILE: Final = 2048


@triton.jit
def _convert(x, y, mask):
    """Convert the values at ``x`` to the type of ``y``; the mask may be None."""
    if x.dtype == y.dtype:
        tl.store(y, tl.load(x, mask=mask), mask=mask)
    else:
        store_values(y, load_values(x, None, 0, mask, None), mask, False, False)


@triton.jit
def _convert_tile(x, y, tile, count, TILE: tl.constexpr):
    """Convert the values of a tile, up to value ``count`` of the tensor."""
    place = tl.arange(0, TILE)
    x, y, count = x + tile * TILE, y + tile * TILE, count - tile * TILE
    # a mask keeps loads and stores from being wide, so only the last tile has one
    if count >= TILE:
        _convert(x + place, y + place, None)
    else:
        _convert(x + place, y + place, place < count)


@jit_kernel(do_not_specialize=["out"])
def _cast_kernel(
    starts, counts, first_tiles, owners, offsets, out, sizes, TYPE: tl.constexpr,
    TARGET: tl.constexpr, ALIGNMENT: tl.constexpr, PAYLOAD_ALIGNMENT: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program casts a tile of one tensor to 16 bits."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    payload = new_payload(out, offsets, sizes, k, tile, 2 * count)
    x = typed(tl.load(starts + k), TYPE, ALIGNMENT)
    _convert_tile(x, typed(payload, TARGET, PAYLOAD_ALIGNMENT), tile, count, TILE)


@jit_kernel(do_not_specialize=["buffer", "offsets", "sizes", "status"])
def _uncast_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, owners, status, TYPE: tl.constexpr,
    SOURCE: tl.constexpr, ALIGNMENT: tl.constexpr, PAYLOAD_ALIGNMENT: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program widens a tile of one tensor; a payload of a wrong size is not read."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    payload, is_whole = given_payload(buffer, offsets, sizes, status, k, tile, 2 * count)
    y = typed(tl.load(targets + k), TYPE, ALIGNMENT)
    count = tl.where(is_whole, count, 0)
    _convert_tile(typed(payload, SOURCE, PAYLOAD_ALIGNMENT), y, tile, count, TILE)


def encode_casts(
    xs: Sequence[torch.Tensor], pipeline: CastPipeline, out: torch.Tensor | None = None
) -> FixedFrame:
    """Cast contiguous tensors of one dtype and device to a 16-bit float, without waiting.

    Every NaN becomes the one with the quiet bit alone, unless the tensor already has the target dtype.

    Returns:
        The payloads back to back, each padded with zeros to 8 bytes.
    """
    frame = fixed_frame([2 * x.numel() for x in xs], xs[0].device, out)
    return encode_tiles(
        _cast_kernel, _TILE, xs, frame, TARGET=TYPES[cast("torch.dtype", pipeline.quantizer.dtype)],
        PAYLOAD_ALIGNMENT=common_alignment([frame.buffer.data_ptr(), *frame.starts]), TILE=_TILE,
    )  # fmt: skip


def decode_casts(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    pipeline: CastPipeline,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Widen payloads into contiguous tensors of one dtype and device, without waiting.

    Arguments and result are as in ``group.decode_groups``.
    """
    source = TYPES[cast("torch.dtype", pipeline.quantizer.dtype)]
    places = buffer, offsets, sizes
    return decode_tiles(
        _uncast_kernel, _TILE, places, outs, status,
        SOURCE=source, PAYLOAD_ALIGNMENT=PAYLOAD_ALIGNMENT, TILE=_TILE,
    )  # fmt: skip


@jit_kernel(do_not_specialize=["out"])
def _scaled_cast_kernel(
    starts, counts, first_tiles, owners, offsets, out, sizes, GROUP: tl.constexpr,
    TYPE: tl.constexpr, ALIGNMENT: tl.constexpr, TOP: tl.constexpr, IS_E4M3: tl.constexpr,
    GROUPS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program casts ``GROUPS`` groups of one tensor to 8 bits."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    scales_nbytes = 4 * num_parts(count, GROUP)
    payload = new_payload(out, offsets, sizes, k, tile, scales_nbytes + count)
    scales, x = payload.to(tl.pointer_type(tl.float32)), typed(tl.load(starts + k), TYPE, ALIGNMENT)
    data = payload + scales_nbytes
    cast_groups(x, count, scales, data, tile, GROUP, TOP, IS_E4M3, GROUPS, CHUNK)


@jit_kernel(do_not_specialize=["buffer", "offsets", "sizes", "status"])
def _scaled_uncast_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, owners, status, GROUP: tl.constexpr,
    TYPE: tl.constexpr, ALIGNMENT: tl.constexpr, IS_E4M3: tl.constexpr, GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """One program widens ``GROUPS`` groups of one tensor; a payload of a wrong size is not read."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    scales_nbytes = 4 * num_parts(count, GROUP)
    nbytes = scales_nbytes + count
    payload, is_whole = given_payload(buffer, offsets, sizes, status, k, tile, nbytes)
    scales, y = (
        payload.to(tl.pointer_type(tl.float32)),
        typed(tl.load(targets + k), TYPE, ALIGNMENT),
    )
    count = tl.where(is_whole, count, 0)
    data = payload + scales_nbytes
    uncast_groups(data, scales, y, count, tile, GROUP, IS_E4M3, GROUPS, CHUNK)


def encode_scaled_casts(
    xs: Sequence[torch.Tensor], pipeline: ScaledCastPipeline, out: torch.Tensor | None = None
) -> FixedFrame:
    """Cast contiguous tensors of one dtype and device to an 8-bit float with a scale per group.

    The result is as in ``encode_casts``. A group has at most ``cast.layout.TILE`` values.
    """
    target, group = pipeline.quantizer
    groups, chunk = tile_of(group)
    frame = fixed_frame([payload_nbytes(x.numel(), group) for x in xs], xs[0].device, out)
    return encode_tiles(
        _scaled_cast_kernel, groups * group, xs, frame, GROUP=group, TOP=torch.finfo(target).max,
        IS_E4M3=target == torch.float8_e4m3fn, GROUPS=groups, CHUNK=chunk,
    )  # fmt: skip


def decode_scaled_casts(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    pipeline: ScaledCastPipeline,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Widen payloads of ``encode_scaled_casts``; see ``decode_casts``."""
    source, group = pipeline.quantizer
    groups, chunk = tile_of(group)
    places = buffer, offsets, sizes
    return decode_tiles(
        _scaled_uncast_kernel, groups * group, places, outs, status,
        GROUP=group, IS_E4M3=source == torch.float8_e4m3fn, GROUPS=groups, CHUNK=chunk,
    )  # fmt: skip
