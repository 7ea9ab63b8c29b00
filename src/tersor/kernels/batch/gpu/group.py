"""Group quantization of a list of tensors in Triton; each program handles one tile of one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.pipeline import GroupPipeline
from tersor.kernels.group.gpu.generic import seed_words
from tersor.kernels.group.gpu.tile import (
    dequantize_tile,
    num_rows_of,
    num_values_of,
    num_warps_of,
    quantize_tile,
)
from tersor.kernels.group.layout import payload_nbytes
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
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import num_parts


@jit_kernel(do_not_specialize=["out", "low", "high"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, offsets, out, sizes, low, high, TYPE: tl.constexpr,
    ALIGNMENT: tl.constexpr, DATA_ALIGNMENT: tl.constexpr, NBITS: tl.constexpr,
    STOCHASTIC: tl.constexpr, HADAMARD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes the groups of ``ROWS`` lower rows of one tensor."""
    k, tile, count = own_tile(counts, first_tiles, owners)
    num_groups = num_parts(count, GROUP)
    payload = new_payload(
        out, offsets, sizes, k, tile, num_groups * (4 + GROUP * NBITS // 8)
    )  # fmt: skip
    scales = payload.to(tl.pointer_type(tl.float32))
    data = typed(payload + 4 * num_groups, tl.int32, DATA_ALIGNMENT)
    x = typed(tl.load(starts + k), TYPE, ALIGNMENT)
    quantize_tile(
        x, None, count, (scales, data, num_groups), tile, (low, high), NBITS, STOCHASTIC, HADAMARD,
        GROUP, ROWS,
    )  # fmt: skip


@jit_kernel(do_not_specialize=["buffer", "offsets", "sizes", "status"])
def _dequantize_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, owners, status, TYPE: tl.constexpr,
    ALIGNMENT: tl.constexpr, DATA_ALIGNMENT: tl.constexpr, NBITS: tl.constexpr,
    HADAMARD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program decodes the groups of ``ROWS`` lower rows of one tensor.

    A payload of the wrong size is not read, and its tensor not written.
    """
    k, tile, count = own_tile(counts, first_tiles, owners)
    num_groups = num_parts(count, GROUP)
    payload, is_whole = given_payload(
        buffer, offsets, sizes, status, k, tile, num_groups * (4 + GROUP * NBITS // 8)
    )
    scales = payload.to(tl.pointer_type(tl.float32))
    data = typed(payload + 4 * num_groups, tl.int32, DATA_ALIGNMENT)
    out = typed(tl.load(targets + k), TYPE, ALIGNMENT)
    num_groups, count = tl.where(is_whole, num_groups, 0), tl.where(is_whole, count, 0)
    dequantize_tile(
        (data, 0, scales, 0, 1), num_groups, out, count, tile, NBITS, HADAMARD, False, GROUP, ROWS
    )


def encode_groups(
    xs: Sequence[torch.Tensor],
    pipeline: GroupPipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> FixedFrame:
    """Quantize contiguous tensors of one dtype and device into one buffer, without waiting.

    Args:
        xs: tensors to encode.
        pipeline: quantizer and transform; ``group.layout.is_held_whole`` must accept the group.
        seed: see ``group.reference.group_quantize``; positions count from each tensor's start.
        out: memory for the payloads; new memory by default.

    Returns:
        The payloads back to back, each padded with zeros to 8 bytes.
    """
    nbits, group = pipeline.quantizer
    frame = fixed_frame([payload_nbytes(x.numel(), nbits, group) for x in xs], xs[0].device, out)
    num_groups = (ceil_div(x.numel(), group) for x in xs)
    data = [start + 4 * count for start, count in zip(frame.starts, num_groups, strict=True)]
    return encode_tiles(
        _quantize_kernel, num_values_of(group), xs, frame, *seed_words(seed),
        DATA_ALIGNMENT=common_alignment([frame.buffer.data_ptr(), *data]), NBITS=nbits,
        STOCHASTIC=seed is not None, HADAMARD=pipeline.transform == "hadamard", GROUP=group,
        ROWS=num_rows_of(group), num_warps=num_warps_of(group),
    )  # fmt: skip


def decode_groups(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    pipeline: GroupPipeline,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], the start of each payload; see ``packed_decode.decode_packed``.
        sizes: int64 [len(outs)], bytes of each payload that may be read.
        outs: tensors to write.
        pipeline: as in ``encode_groups``.
        status: receives the result; new memory by default.

    Returns:
        int32 [len(outs)]: 0, or nonzero if a payload has the wrong size; its tensor is then not written.
    """
    nbits, group = pipeline.quantizer
    scales_nbytes = (4 * ceil_div(out.numel(), group) for out in outs)
    return decode_tiles(
        _dequantize_kernel, num_values_of(group), (buffer, offsets, sizes), outs, status,
        DATA_ALIGNMENT=common_alignment([PAYLOAD_ALIGNMENT, *scales_nbytes]), NBITS=nbits,
        HADAMARD=pipeline.transform == "hadamard", GROUP=group, ROWS=num_rows_of(group),
        num_warps=num_warps_of(group),
    )  # fmt: skip
