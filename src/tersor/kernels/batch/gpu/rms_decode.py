"""Decoding of ``rms`` payloads of a list of tensors in Triton, without waiting.

The coder's symbols become values as they are decoded. Tensors that are not coded are filled afterwards,
and outliers overwrite the values decoded in their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
import triton.language as tl

from tersor.kernels.batch.gpu.rms_write import HEAD_NBYTES, scales_start
from tersor.kernels.batch.pipeline import RmsPipeline
from tersor.kernels.entropy.rans.gpu.decode_streams import (
    LEVELS,
    Bodies,
    decode_scaled,
    open_bodies,
)
from tersor.kernels.group.rms import layout
from tersor.kernels.group.rms.gpu import GROUP
from tersor.kernels.payload.gpu.open import open_payload, put_outliers
from tersor.kernels.payload.gpu.plan import CODED, HEADER_NBYTES
from tersor.kernels.payload.gpu.uncoded import fill_uncoded, programs_per_tensor
from tersor.kernels.quantize.gpu.values import bits_of, from_bits
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import F32, F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, num_parts, padded
from tersor.kernels.runtime.workspace import Layout

_VALUES_PER_STORE: Final = 1024
"""Values that one step of filling a tensor writes, and scales that one step checks."""
_SCALE_LIMIT = tl.constexpr(layout.SCALE_LIMIT)


@jit_kernel(do_not_specialize=["buffer", "step_bits", "top"])
def _open_kernel(
    buffer, offsets, sizes, counts, step_bits, top, bodies, rooms, coded, alphabets, scales, levels,
    status, TYPE: tl.constexpr,
):  # fmt: skip
    """One program opens one payload, stores the facts that the coder needs, and computes its levels."""
    k = tl.program_id(0).to(tl.int64)
    size, count = tl.load(sizes + k), tl.load(counts + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, body_nbytes, _, good = open_payload(payload, size, count, TYPE)
    body = payload + HEADER_NBYTES
    is_coded = good & (mode == CODED) & (number == from_bits(step_bits, F64))
    is_coded = is_coded & (body_nbytes >= HEAD_NBYTES)
    head = tl.load(body.to(tl.pointer_type(tl.int64)), mask=is_coded, other=0)
    has_zeros = head == 1
    start = scales_start(has_zeros, top)
    symbols_start = start + padded(2 * num_parts(count, GROUP))
    is_coded = is_coded & ((head == 0) | has_zeros) & (body_nbytes >= symbols_start)
    tl.store(bodies + k, (body + symbols_start).to(tl.int64))
    tl.store(rooms + k, body_nbytes - symbols_start)
    tl.store(coded + k, tl.where(is_coded, count, 0))
    tl.store(alphabets + k, (2 * top + 1).to(tl.int32))
    tl.store(scales + k, (body + start).to(tl.int64))
    tl.store(status + k, (~(is_coded | (good & (mode != CODED)))).to(tl.int32))
    symbol = tl.arange(0, LEVELS)
    code = tl.abs(symbol - top)
    parts = code << 16
    fractions = (body + HEAD_NBYTES).to(tl.pointer_type(tl.int16))
    stored = has_zeros & is_coded & (code > 0) & (code <= top)
    fraction = tl.load(fractions + code - 1, mask=stored, other=0).to(tl.int32) & 0xFFFF
    parts = tl.where(stored, parts - 65535 + fraction, parts)
    level = parts.to(tl.float32) * (from_bits(step_bits, F32) * 2.0**-16)
    tl.store(levels + k * LEVELS + symbol, tl.where(symbol < top, -level, level))


@jit_kernel(do_not_specialize=["buffer"])
def _fill_kernel(
    buffer, offsets, sizes, targets, counts, coded, rooms, scales, nbytes, status,
    TYPE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Program (k, p) writes every p-th part of tensor k if it is not coded, else checks every p-th part of its scales.

    The first program checks that the coder read the whole body.
    """
    k = tl.program_id(0)
    count, address = tl.load(counts + k), tl.load(targets + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, _, _, good = open_payload(payload, tl.load(sizes + k), count, TYPE)
    if good & (mode != CODED):
        fill_uncoded(payload, mode, number, count, address, TYPE, PART)
    elif tl.load(coded + k) > 0:
        begin, stride = tl.program_id(1).to(tl.int64) * PART, tl.num_programs(1) * PART
        own = tl.load(scales + k).to(tl.pointer_type(tl.int16))
        num_groups = num_parts(count, GROUP)
        for start in range(begin, num_groups, stride):
            i = start + tl.arange(0, PART)
            found = tl.load(own + i, mask=i < num_groups, other=0).to(tl.int32) & 0xFFFF
            if tl.max(found, axis=0) >= _SCALE_LIMIT:
                tl.atomic_or(status + k, 1)
        if (tl.program_id(1) == 0) & (tl.load(nbytes + k) != tl.load(rooms + k)):
            tl.atomic_or(status + k, 1)


@lru_cache(maxsize=64)
def _layout(num_tensors: int) -> Layout:
    return Layout.of(
        {
            "addresses": (torch.int64, num_tensors),
            "rooms": (torch.int64, num_tensors),
            "coded": (torch.int64, num_tensors),
            "scales": (torch.int64, num_tensors),
            "alphabets": (torch.int32, num_tensors),
            "levels": (torch.float32, num_tensors * LEVELS.value),
        }
    )


def decode_rms_list(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    pipeline: RmsPipeline,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], the start of each payload; see ``ans_decode.decode_ans``.
        sizes: int64 [len(outs)], bytes of each payload. Not checked.
        outs: tensors to write.
        pipeline: pipeline of the codec.
        status: receives the result; new memory by default.

    Returns:
        int32 [len(outs)]: 0, or nonzero if the payload is malformed and the tensor undefined.
    """
    device, dtype, step = buffer.device, outs[0].dtype, pipeline.quantizer.step
    numels, targets = tuple(out.numel() for out in outs), addresses(outs, device)
    counts, top = on_device(numels, device), layout.top_of(step)
    step_bits = bits_of(layout.f32_step(step))
    if status is None:
        status = torch.empty(len(outs), dtype=torch.int32, device=device)
    held = _layout(len(outs)).carve(device)
    bodies = Bodies(
        held["addresses"], held["rooms"], held["coded"], held["alphabets"], numels, len(outs)
    )
    with torch.cuda.device_of(buffer):
        _open_kernel[(len(outs),)](
            buffer, offsets, sizes, counts, step_bits, top, held["addresses"], held["rooms"], held["coded"],
            held["alphabets"], held["scales"], held["levels"], status, TYPE=TYPES[dtype],
        )  # fmt: skip
        opened = open_bodies(bodies, status)
        decode_scaled(opened, targets, held["levels"], held["scales"], layout.GROUP, dtype, status)
        _fill_kernel[(len(outs), programs_per_tensor(numels, 4 * _VALUES_PER_STORE, 4))](
            buffer, offsets, sizes, targets, counts, held["coded"], held["rooms"], held["scales"],
            opened.nbytes, status, TYPE=TYPES[dtype], PART=_VALUES_PER_STORE, num_warps=4,
        )  # fmt: skip
        put_outliers(buffer, offsets, sizes, targets, counts, dtype, status, max(numels))
    return status
