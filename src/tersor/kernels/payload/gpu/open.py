"""Parsing and checking the payloads of a list of tensors in Triton, and writing exactly stored values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.kernels.payload.gpu.plan import CODED, CONSTANT, EXACT, HEADER_NBYTES
from tersor.kernels.quantize.gpu.grids import is_step
from tersor.kernels.runtime.gpu.element_types import F16, F32, F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded

OUTLIER_LANES = tl.constexpr(128)
"""Number of outliers that a warp writes at a time."""


@triton.jit
def copy_values(source, target, begin, end, TYPE: tl.constexpr):
    """Copy values ``[begin, end)`` between two addresses, bit for bit."""
    integer: tl.constexpr = tl.int64 if TYPE == F64 else (tl.int32 if TYPE == F32 else tl.int16)
    old, new = source.to(tl.pointer_type(integer)), target.to(tl.pointer_type(integer))
    for start in range(begin, end, 512):
        i = start + tl.arange(0, 512)
        tl.store(new + i, tl.load(old + i, mask=i < end, other=0), mask=i < end)


@triton.jit
def _is_constant(value, TYPE: tl.constexpr):
    """True if a float64 is a finite value of the dtype of ``TYPE``."""
    single = value.to(tl.float32)
    finite = tl.abs(value) < float("inf")
    if TYPE == F64:
        return finite
    elif TYPE == F32:
        return finite & (tl.abs(single) < float("inf")) & (single.to(tl.float64) == value)
    elif TYPE == F16:
        half = single.to(tl.float16)
        return finite & (tl.abs(half) < float("inf")) & (half.to(tl.float64) == value)
    else:
        bits = single.to(tl.int32, bitcast=True)
        exact = (single.to(tl.float64) == value) & ((bits & 0xFFFF) == 0)
        return finite & exact & ((bits & 0x7FFFFFFF) < 0x7F800000)


@triton.jit
def open_payload(payload, size, count, TYPE: tl.constexpr):
    """Return mode, step, size of the body, number of outliers, and whether these are valid.

    Checks everything that does not depend on the codec. If they are not valid, the results must not be
    used.
    """
    words = payload.to(tl.pointer_type(tl.int64))
    complete = size >= HEADER_NBYTES
    head = tl.load(words, mask=complete, other=-1)
    number = tl.load(words + 1, mask=complete, other=0).to(tl.float64, bitcast=True)
    body = tl.load(words + 2, mask=complete, other=-1)
    mode, outliers = head & 0xFFFFFFFF, (head >> 32) & 0xFFFFFFFF
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    possible = complete & (body >= 0) & (body <= size) & (body % 8 == 0) & (outliers <= count)
    end = HEADER_NBYTES + body + padded(4 * outliers) + padded(value_nbytes * outliers)
    possible = possible & (end <= size) & (tl.abs(number) < float("inf"))
    is_exact = (mode == EXACT) & (body == padded(count * value_nbytes)) & (outliers == 0)
    is_coded = (mode == CODED) & (count > 0) & is_step(number, TYPE)
    is_constant = (mode == CONSTANT) & (count > 0) & (body == 0) & _is_constant(number, TYPE)
    return mode, number, body, outliers, possible & (is_exact | is_coded | is_constant)


@triton.jit
def store_given_outliers(
    payload, payload_nbytes, count, target, begin, end, part, num_parts, status,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write those outliers of a payload whose positions lie in ``[begin, end)``.

    Only every ``num_parts``-th run of ``LANES`` outliers, and of the bytes after them, is processed.
    ``status`` is set if any of these are malformed. If the header is invalid, nothing is read.
    """
    _, _, body, outliers, good = open_payload(payload, payload_nbytes, count, TYPE)
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    target = target.to(tl.pointer_type(tl.uint8))
    # an invalid header is reported by the kernel that decodes the payload
    outliers = tl.where(good, outliers, 0)
    positions = (payload + HEADER_NBYTES + body).to(tl.pointer_type(tl.uint32))
    values = payload + HEADER_NBYTES + body + padded(4 * outliers)
    stride = num_parts * LANES
    for start in range(part * LANES, outliers, stride):
        i = start + tl.arange(0, LANES)
        inside = i < outliers
        position = tl.load(positions + i, mask=inside, other=0).to(tl.int64)
        previous = tl.load(positions + i - 1, mask=inside & (i > 0), other=0).to(tl.int64)
        wrong = inside & ((position >= count) | ((position <= previous) & (i > 0)))
        if tl.max(wrong.to(tl.int32), axis=0) > 0:
            tl.atomic_or(status, 1)
        chosen = inside & ~wrong & (position >= begin) & (position < end)
        for byte_of in tl.static_range(value_nbytes):
            byte = tl.load(values + i * value_nbytes + byte_of, mask=chosen, other=0)
            tl.store(target + position * value_nbytes + byte_of, byte, mask=chosen)
    used = HEADER_NBYTES + body + padded(4 * outliers) + padded(value_nbytes * outliers)
    used = tl.where(good, used, payload_nbytes)
    for start in range(used + part * LANES, payload_nbytes, stride):
        i = start + tl.arange(0, LANES)
        left_over = tl.load(payload + i, mask=i < payload_nbytes, other=0)
        if tl.max(left_over.to(tl.int32), axis=0) > 0:
            tl.atomic_or(status, 1)


@jit_kernel(do_not_specialize=["buffer", "status"])
def _outliers_kernel(
    buffer, offsets, sizes, targets, counts, status, TYPE: tl.constexpr, LANES: tl.constexpr
):
    """Programs (k, p) share the outliers of tensor k and the check of the bytes after them."""
    k = tl.program_id(0)
    count = tl.load(counts + k)
    store_given_outliers(
        buffer + tl.load(offsets + k), tl.load(sizes + k), count, tl.load(targets + k), 0, count,
        tl.program_id(1), tl.num_programs(1), status + k, TYPE, LANES,
    )  # fmt: skip


def put_outliers(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    targets: torch.Tensor,
    counts: torch.Tensor,
    dtype: torch.dtype,
    status: torch.Tensor,
    largest: int,
) -> None:
    """Overwrite decoded values of all tensors with the exactly stored ones.

    ``status`` has one word per payload, which is set if the outliers or the bytes after them are malformed.
    ``largest`` is the number of values of the largest tensor: large tensors get more programs.
    """
    programs = max(1, min(64, largest >> 16))
    _outliers_kernel[(counts.numel(), programs)](
        buffer, offsets, sizes, targets, counts, status, TYPE=TYPES[dtype], LANES=OUTLIER_LANES.value,
        num_warps=1,
    )  # fmt: skip
