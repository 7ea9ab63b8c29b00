"""Fixed-size payloads with fields of a few bits per value, as compositions. Nothing waits for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.kernels.batch.compose import check_nbytes
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import MaskPipeline, RangePipeline
from tersor.kernels.group.masks import layout as mask_layout
from tersor.kernels.group.masks import mask_dequantize, mask_quantize
from tersor.kernels.group.ranges import layout as range_layout
from tersor.kernels.group.ranges import range_dequantize, range_quantize
from tersor.kernels.payload.frame import frame_views


def encode_masks(
    xs: Sequence[torch.Tensor], pipeline: MaskPipeline, out: torch.Tensor | None = None
) -> EncodedList:
    """Store each tensor in ``nbits`` bits per value, with exact zeros and signs."""
    nbits = pipeline.quantizer.nbits
    sizes = [mask_layout.payload_nbytes(x.numel(), nbits) for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        mask_quantize(x.view(-1), nbits, payload)
    return EncodedList(sizes, frame)


def decode_masks(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: MaskPipeline
) -> None:
    """Decode what ``encode_masks`` wrote into contiguous tensors."""
    nbits = pipeline.quantizer.nbits
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        check_nbytes(payload, mask_layout.payload_nbytes(out.numel(), nbits))
        mask_dequantize(payload, nbits, out)


def encode_ranges(
    xs: Sequence[torch.Tensor],
    pipeline: RangePipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """Store each tensor in two bits per value, between the smallest and the largest value of each group."""
    group = pipeline.quantizer.group
    sizes = [range_layout.payload_nbytes(x.numel(), group) for x in xs]
    frame, payloads = frame_views(sizes, xs[0].device, out)
    for x, payload in zip(xs, payloads, strict=True):
        range_quantize(x.view(-1), group, seed, payload)
    return EncodedList(sizes, frame)


def decode_ranges(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RangePipeline
) -> None:
    """Decode what ``encode_ranges`` wrote into contiguous tensors."""
    group = pipeline.quantizer.group
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        check_nbytes(payload, range_layout.payload_nbytes(out.numel(), group))
        range_dequantize(payload, group, out)
