"""Decoding of packed payloads of a list of tensors in Triton, without waiting.

Codes are unpacked tile by tile. If neighbours predict, the residuals of each tile are summed first, to obtain the
code before every tile. Nothing in the bytes is trusted before it is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.gpu.packed_short import are_small
from tersor.kernels.pack.blocks.gpu.tile import (
    TILE,
    UNPACK_RUN,
    decode_tile,
    in_order,
    starts_of,
    tile_codes,
)
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES
from tersor.kernels.payload.gpu.open import (
    OUTLIER_LANES,
    copy_values,
    open_payload,
    put_outliers,
    store_given_outliers,
)
from tersor.kernels.payload.gpu.plan import CODED, CONSTANT, HEADER_NBYTES
from tersor.kernels.quantize.gpu.values import as_compute, dequantize_values, store_values
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, sum_before, tile_table

_TAIL = tl.constexpr(TAIL_NBYTES)

_MAX_REGISTERS: Final = 64
"""Limit per thread when summing residuals: 32 warps per multiprocessor, as many as it holds one-warp programs.
Only values for partial tiles spill."""


@triton.jit
def open_packed(payload, nbytes, count, num_tiles, TYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Return mode, number and body bytes of a payload, and whether it may be a payload of ``count`` values."""
    mode, number, body_nbytes, _, good = open_payload(payload, nbytes, count, TYPE)
    _, words_start = starts_of(count, num_tiles, BLOCK)
    return (
        mode,
        number,
        body_nbytes,
        good & ((mode != CODED) | (body_nbytes >= words_start + _TAIL)),
    )


@jit_kernel(do_not_specialize=["buffer"])
def _sum_kernel(
    buffer, offsets, sizes, counts, first_tiles, first_runs, owners, sums, TYPE: tl.constexpr,
    BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One program sums the residuals of each of ``RUN`` tiles of one tensor; 0 if it has no residuals."""
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    first, count = tl.load(first_tiles + k), tl.load(counts + k)
    num_tiles = tl.load(first_tiles + k + 1) - first
    payload = buffer + tl.load(offsets + k)
    mode, _, body_nbytes, good = open_packed(
        payload, tl.load(sizes + k), count, num_tiles, TYPE, BLOCK
    )
    begin = (run - tl.load(first_runs + k)) * RUN
    for local in range(begin, tl.minimum(begin + RUN, num_tiles)):
        total = tl.full((), 0, tl.int32)
        if good & (mode == CODED):
            fours, _good = tile_codes(
                payload + HEADER_NBYTES, body_nbytes, count, local, num_tiles, BLOCK
            )
            total = tl.sum(tl.sum(fours[0] + fours[1] + fours[2] + fours[3], axis=1), axis=0)
        tl.store(sums + first + local, total.to(tl.int64))


@triton.jit
def _running_sums(fours, before):
    """Return the prefix sums of the codes of a tile, starting from ``before``, in order.

    A thread sums its fours first; a prefix sum over all codes takes four times as many exchanges between threads.
    """
    shape: tl.constexpr = fours[0].shape
    s0 = fours[0]
    s1 = s0 + fours[1]
    s2 = s1 + fours[2]
    s3 = s2 + fours[3]
    total = tl.ravel(s3)
    start = tl.reshape(tl.cumsum(total, axis=0) - total + before, shape)
    return in_order((s0 + start, s1 + start, s2 + start, s3 + start))


@triton.jit
def _restore_tile(
    body, body_nbytes, count, local, num_tiles, before, step, address, status, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Decode one tile of residuals; ``before`` is the code before it, modulo 2**32."""
    residuals, good = tile_codes(body, body_nbytes, count, local, num_tiles, BLOCK)
    if not good:
        tl.atomic_or(status, 1)
    values = dequantize_values(_running_sums(residuals, before), step, TYPE, False)
    position = 4 * tl.arange(0, TILE // 4)[:, None] + tl.arange(0, 4)[None, :]
    target = address + local * TILE * (TYPE.primitive_bitwidth // 8)
    left = tl.minimum(count - local * TILE, TILE).to(tl.int32)
    if left == TILE:
        store_values(target, position, values, left, TYPE, ALIGNED, True)
    else:
        store_values(target, position, values, left, TYPE, ALIGNED, False)


@triton.jit
def store_uncoded(payload, mode, number, address, begin, end, count, TYPE: tl.constexpr):
    """Write values ``[begin, end)`` of a payload that is constant or exact; do nothing for a coded one."""
    if mode == CONSTANT:
        for start in range(begin, end, 128):
            values = as_compute(tl.zeros([128], dtype=tl.float64) + number, TYPE)
            position = start + tl.arange(0, 128)
            store_values(address, position, values, count, TYPE, False, False)
    elif mode != CODED:
        copy_values((payload + HEADER_NBYTES).to(tl.int64), address, begin, end, TYPE)


@jit_kernel(do_not_specialize=["buffer", "status"])
def _decode_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, first_runs, owners, ends, status,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    RUN: tl.constexpr, WITH_OUTLIERS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """One program decodes ``RUN`` tiles of one tensor, with their outliers if ``WITH_OUTLIERS``.

    It then reads all outliers of the tensor, so that option is for small tensors. Malformed bytes set the
    tensor's ``status``.
    """
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    first = tl.load(first_tiles + k)
    num_tiles = tl.load(first_tiles + k + 1) - first
    count, address = tl.load(counts + k), tl.load(targets + k)
    payload, payload_nbytes = buffer + tl.load(offsets + k), tl.load(sizes + k)
    mode, number, body_nbytes, good = open_packed(
        payload, payload_nbytes, count, num_tiles, TYPE, BLOCK
    )
    begin = (run - tl.load(first_runs + k)) * RUN
    stop = tl.minimum(begin + RUN, num_tiles)
    if not good:
        tl.atomic_or(status + k, 1)
    body = payload + HEADER_NBYTES
    for local in range(begin, tl.where(good & (mode == CODED), stop, begin)):
        step = as_compute(number, TYPE)
        if DIMS == 0:
            decode_tile(
                body, body_nbytes, count, local, num_tiles, step, address, status + k, TYPE,
                ALIGNED, BLOCK, ROWS,
            )  # fmt: skip
        else:
            before = sum_before(ends, first + local) - sum_before(ends, first)
            _restore_tile(
                body, body_nbytes, count, local, num_tiles, before.to(tl.int32), step, address,
                status + k, TYPE, ALIGNED, BLOCK,
            )  # fmt: skip
    end = tl.minimum(stop * TILE, count)
    if good:
        store_uncoded(payload, mode, number, address, begin * TILE, end, count, TYPE)
    if WITH_OUTLIERS:
        # outliers overwrite what other threads have just stored
        tl.debug_barrier()
        store_given_outliers(
            payload, payload_nbytes, count, address, begin * TILE, end, 0, 1, status + k, TYPE,
            OUTLIER_LANES,
        )  # fmt: skip


def decode_packed(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    encoder: BitpackEncoder,
    status: torch.Tensor | None = None,
    dims: int = 0,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], the start of each payload relative to ``buffer``; a payload elsewhere
            has the difference of the addresses. Not checked.
        sizes: int64 [len(outs)], bytes of each payload. Not checked.
        outs: tensors to write.
        encoder: the encoder that wrote the payloads.
        status: zeros that receive the result; new memory by default.
        dims: 1 if neighbours in the flattened tensor predict, 0 for no prediction.

    Returns:
        int32 [len(outs)]: 0, or nonzero if a payload is malformed; its tensor is then undefined.
    """
    device, dtype = buffer.device, outs[0].dtype
    numels = tuple(y.numel() for y in outs)
    tiles = tile_table(numels, TILE_VALUES, device)
    if status is None:
        status = torch.zeros(len(outs), dtype=torch.int32, device=device)
    targets = addresses(outs, device)
    is_small = are_small(numels)
    run = 1 if is_small else UNPACK_RUN
    runs = tile_table(numels, run * TILE_VALUES, device)
    is_limited = dims > 0 and dtype != torch.float64
    constants: dict[str, Any] = {
        "TYPE": TYPES[dtype], "BLOCK": encoder.block, "RUN": run, "num_warps": 1,
        "maxnreg": _MAX_REGISTERS if is_limited else None,
    }  # fmt: skip
    with torch.cuda.device_of(buffer):
        ends = None
        if dims:
            sums = torch.empty(tiles.num_tiles, dtype=torch.int64, device=device)
            _sum_kernel[(runs.num_tiles,)](
                buffer, offsets, sizes, tiles.counts, tiles.first_tiles, runs.first_tiles,
                runs.owners, sums, **constants,
            )  # fmt: skip
            ends = torch.cumsum(sums, 0, out=sums)
        _decode_kernel[(runs.num_tiles,)](
            buffer, offsets, sizes, targets, tiles.counts, tiles.first_tiles, runs.first_tiles,
            runs.owners, ends, status, ALIGNED=are_aligned(outs), ROWS=TILE_VALUES // encoder.block,
            WITH_OUTLIERS=is_small, DIMS=dims, **constants,
        )  # fmt: skip
        if not is_small:
            put_outliers(buffer, offsets, sizes, targets, tiles.counts, dtype, status, max(numels))
    return status
