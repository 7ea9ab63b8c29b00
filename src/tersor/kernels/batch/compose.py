"""Payloads as compositions of smaller operations, which choose their own backend.

Like every batch operation, ``encode_*`` and ``decode_*`` take lists: tensors are contiguous and on one
device, with one bound per tensor. Decoders raise ``CorruptDataError`` for malformed payloads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import (
    CastPipeline,
    GroupPipeline,
    RowPipeline,
    ScaledCastPipeline,
    StreamPipeline,
)
from tersor.kernels.group import group_dequantize, group_quantize
from tersor.kernels.group.cast import layout as cast_layout
from tersor.kernels.group.cast import scaled_cast, scaled_uncast
from tersor.kernels.group.layout import payload_nbytes
from tersor.kernels.payload.compose import (
    Opened,
    decode_payload,
    put_outliers,
    seal_smallest,
)
from tersor.kernels.payload.frame import frame_views
from tersor.kernels.payload.layout import HEADER
from tersor.kernels.quantize import Grid, finite_range
from tersor.kernels.quantize.body import Body
from tersor.kernels.quantize.grid import Range
from tersor.kernels.rows.compose import decode_rows, encode_rows
from tersor.kernels.rows.layout import row_shape
from tersor.raw_bytes import as_bytes
from tersor.types import Bound


def encode_stream(
    x: torch.Tensor, bound: Bound, pipeline: StreamPipeline
) -> tuple[torch.Tensor, Range | None]:
    """Return the payload of one tensor, and its range if the bound is relative."""
    dims, encoder = pipeline.predictor, pipeline.encoder
    limits: Range | None = None
    error_bound = bound.value
    if bound.kind == "relative" and x.numel():
        low, high = finite_range(x).tolist()
        limits, error_bound = (low, high), bound.resolve(low, high)
    grid = Grid.for_bound(error_bound, x.dtype, limits) if x.numel() else None
    if grid is None:
        return seal_smallest(x, None, limits), limits
    if dims == 0:
        data, positions = encoder.quantize_encode(x, grid, HEADER.size, limits)
    else:
        data, positions = encoder.predict_encode(x, grid, dims, HEADER.size)
    values = x.view(-1)[positions] if positions.numel() else positions
    return seal_smallest(x, Body(grid.step, data, positions, values), limits), limits


def encode_streams(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    pipeline: StreamPipeline,
    with_ranges: bool = False,
) -> EncodedList:
    """Quantize each tensor within its bound, predict, and encode the codes.

    ``with_ranges`` requests the ranges of tensors with relative bounds; a backend that computes them
    anyway always returns them.
    """
    del with_ranges
    made = [encode_stream(x, bound, pipeline) for x, bound in zip(xs, bounds, strict=True)]
    return EncodedList.apart([one[0] for one in made], xs, [one[1] for one in made])


def decode_stream(payload: torch.Tensor, out: torch.Tensor, pipeline: StreamPipeline) -> None:
    """Decode what ``encode_stream`` wrote."""
    dims, encoder = pipeline.predictor, pipeline.encoder

    def decode_body(opened: Opened, out: torch.Tensor) -> int:
        if dims == 0:
            nbytes = encoder.decode_dequantize(opened.body, opened.step, out)
        else:
            nbytes = encoder.decode_restore(opened.body, opened.step, dims, out)
        put_outliers(opened, out)
        return nbytes

    decode_payload(payload, out, decode_body)


def decode_streams(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: StreamPipeline
) -> None:
    """Decode what ``encode_streams`` wrote into contiguous tensors."""
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        decode_stream(payload, out, pipeline)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """View a tensor as a matrix: rows run along the last axis; a vector is one row."""
    return x if x.dim() == 2 else x.view(row_shape(tuple(x.shape)))


def encode_row_payload(
    x: torch.Tensor, bound: Bound, pipeline: RowPipeline
) -> tuple[torch.Tensor, Range | None]:
    """Return the payload of one tensor, stored as distinct rows, and its range."""
    if x.numel() == 0:
        return seal_smallest(x, None), None
    body, limits = encode_rows(as_rows(x), bound, pipeline.encoder, HEADER.size)
    return seal_smallest(x, body, limits), limits


def encode_row_lists(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    pipeline: RowPipeline,
    with_ranges: bool = False,
) -> EncodedList:
    """Quantize the distinct rows of each tensor, merge those with equal codes, and entropy-code.

    ``with_ranges`` is as in ``encode_streams``.
    """
    del with_ranges
    made = [encode_row_payload(x, bound, pipeline) for x, bound in zip(xs, bounds, strict=True)]
    return EncodedList.apart([one[0] for one in made], xs, [one[1] for one in made])


def decode_row_payload(payload: torch.Tensor, out: torch.Tensor, pipeline: RowPipeline) -> None:
    """Decode what ``encode_row_payload`` wrote."""

    def decode_body(opened: Opened, out: torch.Tensor) -> int:
        outliers = opened.positions, opened.values
        body, coder = opened.body, pipeline.encoder
        nbytes: int = decode_rows(body, opened.step, *outliers, as_rows(out), coder)
        return nbytes

    decode_payload(payload, out, decode_body)


def decode_row_lists(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RowPipeline
) -> None:
    """Decode what ``encode_row_lists`` wrote into contiguous tensors."""
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        decode_row_payload(payload, out, pipeline)


def encode_groups(
    xs: Sequence[torch.Tensor],
    pipeline: GroupPipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """Store each tensor as one float32 scale per group and 8 or 4 bits per value.

    Args:
        xs: the tensors to encode.
        pipeline: quantizer and optional Hadamard transform.
        seed: seed of stochastic rounding, with positions counted from each tensor's start; None rounds
            to nearest.
        out: uint8 memory for the payloads; new memory by default.
    """
    (nbits, group), hadamard = pipeline.quantizer, pipeline.transform == "hadamard"
    sizes = [payload_nbytes(x.numel(), nbits, group) for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        scales, data = split_scales(payload, x.numel(), group)
        group_quantize(x.view(-1), nbits, group, seed, hadamard, (scales, data))
    return EncodedList(sizes, frame)


def split_scales(
    payload: torch.Tensor, numel: int, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float32 scales and the rest of a payload of ``numel`` values in groups."""
    scales_nbytes = 4 * (-(-numel // group))
    return payload[:scales_nbytes].view(torch.float32), payload[scales_nbytes:]


def decode_groups(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: GroupPipeline
) -> None:
    """Decode what ``encode_groups`` wrote into contiguous tensors."""
    (nbits, group), hadamard = pipeline.quantizer, pipeline.transform == "hadamard"
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        check_nbytes(payload, payload_nbytes(out.numel(), nbits, group))
        scales, data = split_scales(payload, out.numel(), group)
        group_dequantize(data, scales, nbits, group, hadamard, out)


def check_nbytes(payload: torch.Tensor, expected: int) -> None:
    """Raise ``CorruptDataError`` unless a payload of fixed size has that size."""
    if payload.numel() != expected:
        raise CorruptDataError(f"{expected} payload bytes expected, {payload.numel()} present")


def encode_casts(
    xs: Sequence[torch.Tensor],
    pipeline: CastPipeline,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """Cast each tensor to a 16-bit float dtype; with dtype None, store its bytes unchanged."""
    target = pipeline.quantizer.dtype
    sizes = [x.numel() * (target or x.dtype).itemsize for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        if target is None:
            payload.copy_(as_bytes(x))
        else:
            payload.view(target).copy_(x.view(-1))
    return EncodedList(sizes, frame)


def decode_casts(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: CastPipeline
) -> None:
    """Decode what ``encode_casts`` wrote into contiguous tensors."""
    source = pipeline.quantizer.dtype
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        check_nbytes(payload, out.numel() * (source or out.dtype).itemsize)
        if source is None:
            as_bytes(out).copy_(payload)
        else:
            out.view(-1).copy_(payload.view(source))


def encode_scaled_casts(
    xs: Sequence[torch.Tensor],
    pipeline: ScaledCastPipeline,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """Cast each tensor to an 8-bit float with one float32 scale per group."""
    target, group = pipeline.quantizer
    sizes = [cast_layout.payload_nbytes(x.numel(), group) for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        values = x.view(-1).to(torch.float32)
        values = torch.cat([values, values.new_zeros(-values.numel() % group)])
        scales, data = scaled_cast(values, target, group)
        torch.cat([as_bytes(scales), as_bytes(data)[: x.numel()]], out=payload)
    return EncodedList(sizes, frame)


def decode_scaled_casts(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: ScaledCastPipeline
) -> None:
    """Decode what ``encode_scaled_casts`` wrote into contiguous tensors."""
    source, group = pipeline.quantizer
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        check_nbytes(payload, cast_layout.payload_nbytes(out.numel(), group))
        scales, data = split_scales(payload, out.numel(), group)
        data = torch.cat([data, data.new_zeros(-data.numel() % group)])
        values = scaled_uncast(data.view(source), scales, group)
        out.view(-1).copy_(values[: out.numel()])
