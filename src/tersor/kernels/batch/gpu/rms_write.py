"""Payloads of ``rms`` in Triton: their sizes and places, and all of their contents but the coder's bodies."""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.batch.gpu.rms_quantize import LEVELS
from tersor.kernels.group.rms import layout
from tersor.kernels.group.rms.gpu import GROUP, is_outlier, load_scalable
from tersor.kernels.payload.gpu.open import copy_values
from tersor.kernels.payload.gpu.plan import (
    CODED,
    EXACT,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    OUTLIERS,
    close_payload,
    decide,
    fits,
    put_plan,
    store_outliers,
)
from tersor.kernels.quantize.gpu.values import from_bits
from tersor.kernels.runtime.gpu.element_types import F32
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import num_parts, padded, store_zeros, sum_before_in_tensor

HEAD_NBYTES = tl.constexpr(layout.HEAD_NBYTES)
_LEVELS = tl.constexpr(LEVELS)


@triton.jit
def scales_start(has_zeros, top):
    """Return the first byte of the scales in a body."""
    return HEAD_NBYTES + tl.where(has_zeros, (2 * top + 7) // 8 * 8, 0).to(tl.int64)


@jit_kernel(do_not_specialize=["num_tensors", "step_bits", "top"])
def plan_kernel(
    counts, flags, totals, body_nbytes, num_tensors, step_bits, top, plan, sizes,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program decides mode, size and place of every payload, in order."""
    end = tl.zeros([1], dtype=tl.int64)
    for start in range(0, num_tensors, LANES):
        k = start + tl.arange(0, LANES)
        inside = k < num_tensors
        count = tl.load(counts + k, mask=inside, other=0)
        has_zeros = tl.load(flags + k, mask=inside, other=0) > 0
        scales_nbytes = padded(2 * num_parts(count, GROUP))
        body = tl.load(body_nbytes + k, mask=inside, other=0)
        body += scales_start(has_zeros, top) + scales_nbytes
        outliers = tl.load(totals + k, mask=inside, other=0)
        step = tl.zeros([LANES], dtype=tl.float64) + from_bits(step_bits, F32).to(tl.float64)
        decided = decide(count, body, outliers, 0, step, count < 0, 0.0, TYPE)
        end = put_plan(plan, sizes, k, inside, decided, end)


@triton.jit
def _place_outliers(
    payload, row, address, count, outlier_counts, first, last, TYPE: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Store the outliers of this program's share of the tiles ``[first, last)``."""
    for tile in range(first + tl.program_id(1), last, tl.num_programs(1)):
        before = sum_before_in_tensor(outlier_counts, first, tile)
        if tl.load(outlier_counts + tile) > before:
            for part in range(0, TILE, PART):
                position = (tile - first) * TILE + part + tl.arange(0, PART)
                values = load_scalable(address, position, count, TYPE, False, False)
                special = (position < count) & is_outlier(values)
                store_outliers(payload, row, address, position, special, before, TYPE)
                before += tl.sum(special.to(tl.int64), axis=0)


@triton.jit
def _write_body(payload, has_zeros, num_groups, fractions, scales, top, LANES: tl.constexpr):
    """Write this program's share of the scales and all that precedes them; return the address after them."""
    body = payload + HEADER_NBYTES
    start = scales_start(has_zeros, top)
    target = (body + start).to(tl.pointer_type(tl.int16))
    for first in range(tl.program_id(1) * LANES, num_groups, tl.num_programs(1) * LANES):
        i = first + tl.arange(0, LANES)
        tl.store(target + i, tl.load(scales + i, mask=i < num_groups, other=0), mask=i < num_groups)
    if tl.program_id(1) == 0:
        tl.store(body.to(tl.pointer_type(tl.int64)), has_zeros.to(tl.int64))
        i = tl.arange(0, _LEVELS)
        own = tl.load(fractions + i, mask=i < top, other=0)
        places = (body + HEAD_NBYTES).to(tl.pointer_type(tl.int16)) + i
        tl.store(places, own, mask=has_zeros & (i < (top + 3) // 4 * 4))
        scales_nbytes = 2 * num_groups
        store_zeros(body + start + scales_nbytes, padded(scales_nbytes) - scales_nbytes, 8)
    return (body + start + padded(2 * num_groups)).to(tl.int64)


@jit_kernel(do_not_specialize=["room", "top"])
def finish_kernel(
    starts, counts, first_tiles, groups, outlier_counts, plan, flags, fractions, scales, out, targets,
    room: tl.int64, top, TYPE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Program (k, p) writes every p-th part of the payload of tensor k, except for the coder's body.

    The first program stores the address for that body, 0 if the payload does not fit.
    """
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    target = tl.full((), 0, tl.int64)
    if fits(row, room):
        mode, payload = tl.load(row + MODE), out + tl.load(row + OFFSET)
        count, address = tl.load(counts + k), tl.load(starts + k)
        first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
        if mode == EXACT:
            body = (payload + HEADER_NBYTES).to(tl.int64)
            for tile in range(tl.program_id(1), last - first, tl.num_programs(1)):
                copy_values(address, body, tile * TILE, tl.minimum((tile + 1) * TILE, count), TYPE)
        if mode == CODED:
            num_groups = num_parts(count, GROUP)
            own_scales = scales + tl.load(groups + k)
            target = _write_body(
                payload, tl.load(flags + k) > 0, num_groups, fractions + k * _LEVELS, own_scales,
                top, PART,
            )  # fmt: skip
            if tl.load(row + OUTLIERS) > 0:
                _place_outliers(
                    payload, row, address, count, outlier_counts, first, last, TYPE, TILE, PART
                )
        if tl.program_id(1) == 0:
            close_payload(payload, count, row, TYPE)
    if tl.program_id(1) == 0:
        tl.store(targets + k, target)
