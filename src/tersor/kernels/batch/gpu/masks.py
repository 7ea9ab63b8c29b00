"""Masked groups of a list of tensors in Triton; each program handles one tile of one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl

from tersor.kernels.batch.pipeline import MaskPipeline
from tersor.kernels.group.masks import layout
from tersor.kernels.group.masks.gpu import (
    ROWS,
    SAMPLED_ROWS,
    SAMPLING_WARPS,
    TILE,
    dequantize_tile,
    payload_nbytes,
    quantize_tile,
    write_fractions,
)
from tersor.kernels.payload.gpu.fixed_size import (
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
from tersor.kernels.runtime.gpu.tiles import addresses, tile_table


@jit_kernel(do_not_specialize=["out"])
def _fractions_kernel(
    starts, counts, offsets, out, TYPE: tl.constexpr, ALIGNMENT: tl.constexpr, NBITS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Program k writes the fractions of tensor k, from its sampled groups."""
    k = tl.program_id(0).to(tl.int64)
    x = typed(tl.load(starts + k), TYPE, ALIGNMENT)
    write_fractions(x, tl.load(counts + k), out + tl.load(offsets + k), NBITS, ROWS)


@jit_kernel(do_not_specialize=["out"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, offsets, out, sizes, TYPE: tl.constexpr,
    ALIGNMENT: tl.constexpr, NBITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes the ``ROWS`` groups of a tile."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    payload = new_payload(out, offsets, sizes, k, tile, payload_nbytes(count, NBITS))
    quantize_tile(typed(tl.load(starts + k), TYPE, ALIGNMENT), count, payload, tile, NBITS, ROWS)


@jit_kernel(do_not_specialize=["buffer", "offsets", "sizes", "status"])
def _dequantize_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, owners, status, TYPE: tl.constexpr,
    ALIGNMENT: tl.constexpr, NBITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program decodes the ``ROWS`` groups of a tile; a payload of the wrong size is not read."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    nbytes = payload_nbytes(count, NBITS)
    payload, is_whole = given_payload(buffer, offsets, sizes, status, k, tile, nbytes)
    out = typed(tl.load(targets + k), TYPE, ALIGNMENT)
    dequantize_tile(payload, is_whole, out, count, tile, NBITS, ROWS)


def encode_masks(
    xs: Sequence[torch.Tensor], pipeline: MaskPipeline, out: torch.Tensor | None = None
) -> FixedFrame:
    """Quantize contiguous tensors of one dtype and device into one buffer, without waiting.

    Args:
        xs: tensors to encode.
        pipeline: the quantizer.
        out: memory for the payloads; new memory by default.

    Returns:
        The payloads back to back, each padded with zeros to 8 bytes.
    """
    nbits, device = pipeline.quantizer.nbits, xs[0].device
    numels = tuple(x.numel() for x in xs)
    frame = fixed_frame([layout.payload_nbytes(numel, nbits) for numel in numels], device, out)
    counts = tile_table(numels, TILE, device).counts
    with torch.cuda.device_of(xs[0]):
        _fractions_kernel[(len(xs),)](
            addresses(xs, device), counts, frame.offsets, frame.buffer, TYPE=TYPES[xs[0].dtype], ALIGNMENT=common_alignment([x.data_ptr() for x in xs]),
            NBITS=nbits, ROWS=SAMPLED_ROWS, num_warps=SAMPLING_WARPS,
        )  # fmt: skip
    return encode_tiles(_quantize_kernel, TILE, xs, frame, NBITS=nbits, ROWS=ROWS, num_warps=1)


def decode_masks(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    pipeline: MaskPipeline,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Arguments and result are as in ``group.decode_groups``.
    """
    places = buffer, offsets, sizes
    return decode_tiles(
        _dequantize_kernel, TILE, places, outs, status,
        NBITS=pipeline.quantizer.nbits, ROWS=ROWS, num_warps=1,
    )  # fmt: skip
