"""Range-quantized groups of a list of tensors in Triton; each program handles one tile of one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl

from tersor.kernels.batch.pipeline import RangePipeline
from tersor.kernels.group.gpu.generic import seed_words
from tersor.kernels.group.ranges import layout
from tersor.kernels.group.ranges.gpu import (
    TILE,
    GroupTile,
    dequantize_tile,
    payload_nbytes,
    quantize_tile,
)
from tersor.kernels.payload.gpu.fixed_size import (
    FixedFrame,
    decode_tiles,
    encode_tiles,
    fixed_frame,
    given_payload,
    new_payload,
    own_tile,
    typed,
)
from tersor.kernels.runtime.gpu.launch import jit_kernel


@jit_kernel(do_not_specialize=["out", "low", "high"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, offsets, out, sizes, low, high, TYPE: tl.constexpr,
    ALIGNMENT: tl.constexpr, STOCHASTIC: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """One program quantizes ``GROUPS`` groups of one tensor."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    payload = new_payload(out, offsets, sizes, k, tile, payload_nbytes(count, GROUP))
    x = typed(tl.load(starts + k), TYPE, ALIGNMENT)
    quantize_tile(x, count, payload, tile, (low, high), STOCHASTIC, GROUP, GROUPS, CHUNK)


@jit_kernel(do_not_specialize=["buffer", "offsets", "sizes", "status"])
def _dequantize_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, owners, status, TYPE: tl.constexpr,
    ALIGNMENT: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program decodes ``TILE`` values of one tensor; a payload of the wrong size is not read."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    nbytes = payload_nbytes(count, GROUP)
    payload, is_whole = given_payload(buffer, offsets, sizes, status, k, tile, nbytes)
    out = typed(tl.load(targets + k), TYPE, ALIGNMENT)
    dequantize_tile(payload, is_whole, out, count, tile, GROUP, TILE)


def encode_ranges(
    xs: Sequence[torch.Tensor],
    pipeline: RangePipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> FixedFrame:
    """Quantize contiguous tensors of one dtype and device into one buffer, without waiting.

    Args:
        xs: tensors to encode.
        pipeline: the quantizer.
        seed: see ``ranges.reference.range_quantize``; positions count from each tensor's start.
        out: memory for the payloads; new memory by default.

    Returns:
        The payloads back to back, each padded with zeros to 8 bytes.
    """
    group = pipeline.quantizer.group
    tile = GroupTile.of(group)
    frame = fixed_frame([layout.payload_nbytes(x.numel(), group) for x in xs], xs[0].device, out)
    return encode_tiles(
        _quantize_kernel, tile.num_groups * group, xs, frame, *seed_words(seed),
        STOCHASTIC=seed is not None, GROUP=group, GROUPS=tile.num_groups, CHUNK=tile.num_values,
        num_warps=tile.num_warps,
    )  # fmt: skip


def decode_ranges(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    pipeline: RangePipeline,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Arguments and result are as in ``group.decode_groups``.
    """
    places = buffer, offsets, sizes
    return decode_tiles(
        _dequantize_kernel, TILE, places, outs, status,
        GROUP=pipeline.quantizer.group, TILE=TILE, num_warps=1,
    )  # fmt: skip
