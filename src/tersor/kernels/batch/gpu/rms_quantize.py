"""Symbols, scales and levels of ``rms`` in Triton: sampled groups decide frequencies and levels, then values are read once.

The coder therefore need not wait for all symbols.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.group.rms import layout
from tersor.kernels.group.rms.gpu import (
    GROUP,
    WORDS,
    load_scalable,
    scales_of,
    shifted_codes,
    stored_scales,
    units_of,
    without_outliers,
)
from tersor.kernels.quantize.gpu.values import SHIFT, from_bits
from tersor.kernels.runtime.gpu.element_types import F32
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import num_parts, sum_tiles

LEVELS: Final = 128
"""Entries per tensor for fractions, and for the sums that they are computed from."""
_NUM_SAMPLED = tl.constexpr(layout.NUM_SAMPLED)
_ZEROS_PER_VALUE = tl.constexpr(layout.ZEROS_PER_VALUE)
_LEAST_FRACTION, _MIDDLE = tl.constexpr(layout.LEAST_FRACTION), tl.constexpr(layout.MIDDLE)
_NARROW, _LEVELS = tl.constexpr(NARROW), tl.constexpr(LEVELS)


@triton.jit
def _places(first_rows, ROWS: tl.constexpr):
    """Return positions [64 * ROWS, 4] of groups that start at ``first_rows``, int64 [ROWS]."""
    word = tl.arange(0, ROWS * WORDS)
    start = tl.reshape(tl.broadcast_to(first_rows[:, None], [ROWS, WORDS]), [ROWS * WORDS])
    return (start + 4 * (word % WORDS))[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def _sampled(row, count):
    """Return the first value of sampled group ``row``, as in ``layout.sampled_groups``; ``count`` if there is none."""
    num_groups = num_parts(count, GROUP)
    num_sampled = tl.maximum(tl.minimum(num_groups, _NUM_SAMPLED), 1)
    return tl.where(row < num_sampled, row * num_groups // num_sampled * GROUP, count)


@jit_kernel(do_not_specialize=["top"])
def start_kernel(frequencies, sums, totals, alphabets, rotations, top):
    """One program initialises the counters and the alphabet of one tensor."""
    k = tl.program_id(0).to(tl.int64)
    # every count starts at 1, so that no symbol is impossible
    ones = tl.full([_NARROW], 1, tl.int64)
    tl.store(frequencies + k * _NARROW + tl.arange(0, _NARROW), ones)
    zeros = tl.zeros([_LEVELS], dtype=tl.int64)
    tl.store(sums + k * _LEVELS + tl.arange(0, _LEVELS), zeros)
    tl.store(totals + k, tl.full((), 0, tl.int64))
    tl.store(alphabets + k, (2 * top + 1).to(tl.int32))
    tl.store(rotations + k, tl.full((), 0, tl.int32))


@jit_kernel(do_not_specialize=["step_bits", "top", "zeros"])
def sample_kernel(
    starts, counts, step_bits, top, zeros, flags, frequencies, sums, TYPE: tl.constexpr,
    ROWS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Program (k, p) counts the symbols of the p-th ``ROWS`` sampled groups of tensor k.

    ``zeros`` is 1 or 0, or 2 to decide from all sampled groups, read ``ALL`` at a time.
    """
    k, p = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count, address = tl.load(counts + k), tl.load(starts + k)
    has_zeros = zeros == 1
    if zeros == 2:
        num_zeros, num_values = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
        for first in range(0, _NUM_SAMPLED, ALL):
            position = _places(_sampled(first + tl.arange(0, ALL).to(tl.int64), count), ALL)
            inside = position < count
            values = load_scalable(address, position, count, TYPE, False, False)
            num_zeros += tl.sum(tl.sum(((values == 0) & inside).to(tl.int32), axis=1), axis=0)
            num_values += tl.sum(tl.sum(inside.to(tl.int32), axis=1), axis=0)
        has_zeros = num_zeros * _ZEROS_PER_VALUE > num_values
    if p == 0:
        tl.store(flags + k, has_zeros.to(tl.int64))
    row = _sampled(p * ROWS + tl.arange(0, ROWS).to(tl.int64), count)
    position = _places(row, ROWS)
    inside = position < count
    values = load_scalable(address, position, count, TYPE, False, False)
    sizes = tl.minimum(count - row, GROUP).to(tl.int32)
    values, peaks, _ = without_outliers(values, ROWS)
    scales = scales_of(values, peaks, sizes, has_zeros, ROWS)
    units = units_of(values, scales, from_bits(step_bits, F32), ROWS)
    symbols = shifted_codes(values, units, has_zeros) - (SHIFT - top)
    # no symbol is 255: places beyond the last value are counted there
    held = tl.reshape(tl.where(inside, symbols, _NARROW - 1), [ROWS * GROUP])
    found = tl.histogram(held, _NARROW)
    bin_ = tl.arange(0, _NARROW)
    shown = (found > 0) & (bin_ < _NARROW - 1)
    tl.atomic_add(frequencies + k * _NARROW + bin_, found.to(tl.int64), mask=shown)
    if has_zeros:
        code = tl.abs(symbols - top)
        parts = (units * 65536.0).to(tl.int64)
        tl.atomic_add(sums + k * _LEVELS + code, parts, mask=inside & (code > 0))


@triton.jit
def _quantize(
    address, limit, target, scales, step, has_zeros, top, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store symbols and scales of a tile of ``limit`` values; return the number of its outliers."""
    word = tl.arange(0, ROWS * WORDS)
    position = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_scalable(address, position, limit, TYPE, ALIGNED, WHOLE)
    row = tl.arange(0, ROWS)
    sizes = tl.minimum(tl.maximum(limit - row * GROUP, 0), GROUP)
    values, peaks, num_outliers = without_outliers(values, ROWS)
    found = scales_of(values, peaks, sizes, has_zeros, ROWS)
    codes = shifted_codes(values, units_of(values, found, step, ROWS), has_zeros)
    # the shift of four codes is subtracted at once, modulo 2**32
    excess: tl.constexpr = (SHIFT * 0x01010101 + 0x80000000) % 0x100000000 - 0x80000000
    joined = tl.sum(codes << (8 * tl.arange(0, 4))[None, :], axis=1) - excess + top * 0x01010101
    tl.store(target.to(tl.pointer_type(tl.int32)) + word, joined, mask=(4 * word < limit) | WHOLE)
    tl.store(scales + row, stored_scales(found), mask=(row * GROUP < limit) | WHOLE)
    return num_outliers


@jit_kernel(do_not_specialize=["step_bits", "top"])
def quantize_kernel(
    starts, counts, first_tiles, owners, places, groups, step_bits, top, flags, symbols, scales,
    outlier_counts, totals, TYPE: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes one tile and counts its outliers."""
    # backwards: the symbols written last are coded first, and are then still in the cache
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k = tl.load(owners + tile)
    own = tile - tl.load(first_tiles + k)
    base, count = own * (ROWS * GROUP), tl.load(counts + k)
    address = tl.load(starts + k) + base * (TYPE.primitive_bitwidth // 8)
    limit = tl.minimum(count - base, ROWS * GROUP).to(tl.int32)
    target = symbols + tl.load(places + k) + base
    own_scales = scales + tl.load(groups + k) + own * ROWS
    step, has_zeros = from_bits(step_bits, F32), tl.load(flags + k) > 0
    num_outliers = limit * 0
    if limit == ROWS * GROUP:
        num_outliers = _quantize(
            address, limit, target, own_scales, step, has_zeros, top, TYPE, ALIGNED, True, ROWS
        )
    else:
        num_outliers = _quantize(
            address, limit, target, own_scales, step, has_zeros, top, TYPE, ALIGNED, False, ROWS
        )
    tl.store(outlier_counts + tile, num_outliers.to(tl.int64))
    if num_outliers > 0:
        tl.atomic_add(totals + k, num_outliers.to(tl.int64))


@jit_kernel(do_not_specialize=["top"])
def settle_kernel(
    frequencies, sums, fractions, totals, outlier_counts, first_tiles, top, LANES: tl.constexpr
):
    """One program computes the fractions of one tensor, and the prefix sums of its outliers if it has any."""
    k = tl.program_id(0).to(tl.int64)
    code = tl.arange(0, _LEVELS)
    inside = (code > 0) & (code <= top)
    own = frequencies + k * _NARROW + top
    # every count starts at 1, not 0
    num = tl.load(own + code, mask=inside, other=1) + tl.load(own - code, mask=inside, other=1) - 2
    mean = tl.load(sums + k * _LEVELS + code, mask=inside, other=0) // tl.maximum(num, 1)
    fraction = tl.where(num > 0, mean - ((code - 1) << 16) - 1, _MIDDLE)
    fraction = tl.minimum(tl.maximum(fraction, tl.where(code == 1, _LEAST_FRACTION, 0)), 65535)
    tl.store(fractions + k * _LEVELS + code - 1, fraction.to(tl.int16), mask=inside)
    if tl.load(totals + k) > 0:
        sum_tiles(outlier_counts, first_tiles, k, LANES)
