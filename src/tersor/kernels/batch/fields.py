"""Payloads of fixed size, of fields of few bits per value, as compositions. No part of them waits for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.kernels.batch.compose import check_nbytes
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import MaskPipeline, RangePipeline
from tersor.kernels.group.masks import mask_dequantize, mask_quantize
from tersor.kernels.group.masks.reference import parts_nbytes
from tersor.kernels.group.ranges import range_dequantize, range_quantize
from tersor.kernels.group.ranges.reference import payload_nbytes
from tersor.kernels.payload.frame import frame_views
from tersor.raw_bytes import as_padded_bytes


def encode_masks(
    xs: Sequence[torch.Tensor], pipeline: MaskPipeline, out: torch.Tensor | None = None
) -> EncodedList:
    """Store each tensor in so many bits per value, with exact zeros and signs."""
    nbits = pipeline.quantizer.nbits
    sizes = [sum(parts_nbytes(x.numel(), nbits)) for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        parts = mask_quantize(x.view(-1), nbits)
        torch.cat([as_padded_bytes(part) for part in parts], out=payload)
    return EncodedList(sizes, frame)


def decode_masks(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: MaskPipeline
) -> None:
    """Decode what ``encode_masks`` wrote into contiguous tensors."""
    nbits = pipeline.quantizer.nbits
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        nbytes = parts_nbytes(out.numel(), nbits)
        check_nbytes(payload, sum(nbytes))
        fractions, scales, data = payload.split_with_sizes(nbytes)
        num_groups, top = data.numel() // (32 * nbits), (1 << nbits) - 1
        known = fractions.view(torch.int16)[:top], scales.view(torch.int16)[:num_groups]
        mask_dequantize(*known, data, nbits, out)


def encode_ranges(
    xs: Sequence[torch.Tensor],
    pipeline: RangePipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """Store each tensor as two bits per value between the smallest and the largest of each group."""
    group = pipeline.quantizer.group
    sizes = [payload_nbytes(x.numel(), group) for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        limits, data = range_quantize(x.view(-1), group, seed)
        torch.cat([limits.view(-1).view(torch.uint8), data], out=payload)
    return EncodedList(sizes, frame)


def decode_ranges(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RangePipeline
) -> None:
    """Decode what ``encode_ranges`` wrote into contiguous tensors."""
    group = pipeline.quantizer.group
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        check_nbytes(payload, payload_nbytes(out.numel(), group))
        num_groups = payload.numel() // (4 + group // 4)
        limits = payload[: 4 * num_groups].view(torch.int16).view(2, num_groups)
        if out.numel():
            range_dequantize(limits, payload[4 * num_groups :], group, out)
