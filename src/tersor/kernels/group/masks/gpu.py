"""Masked groups in Triton: device functions on tiles of whole groups, and kernels for one tensor.

A tile of ``ROWS`` groups is held as [words, 4 or 8]: a thread loads 16 bytes of values, whose fields make one word.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.group.gpu.generic import MAGIC_BITS
from tersor.kernels.group.masks import layout
from tersor.kernels.group.rms.layout import (
    GROUP,
    LARGEST_MAGNITUDE,
    LEAST_FRACTION,
    MIDDLE,
    NUM_SAMPLED,
    SMALLEST_SCALE,
)
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import num_parts, padded, store_zeros
from tersor.kernels.transform.gpu import carrier, store_values, widened

ROWS: Final = 4
"""Groups of a tile. A program is one warp with 32 values per thread, as in ``rms``."""
TILE: Final = ROWS * GROUP
SAMPLED_ROWS: Final = 16
"""Sampled groups that a program reads at a time, in 8 warps."""
SAMPLING_WARPS: Final = 8


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.int32))


_GROUP, _NUM_SAMPLED = tl.constexpr(GROUP), tl.constexpr(NUM_SAMPLED)
_LIMIT, _SMALLEST = tl.constexpr(_bits(LARGEST_MAGNITUDE)), tl.constexpr(_bits(SMALLEST_SCALE))
_INFINITE, _SIGN = tl.constexpr(0x7F800000), tl.constexpr(-0x80000000)
_NAN_SCALE = tl.constexpr(layout.NAN_SCALE)
_LEAST_FRACTION, _MIDDLE = tl.constexpr(LEAST_FRACTION), tl.constexpr(MIDDLE)
_MAGIC = tl.constexpr(1.5 * 2.0**23)
# Triton's interpreter cannot run PTX
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def payload_nbytes(count, NBITS: tl.constexpr):
    """See ``layout.payload_nbytes``."""
    num_groups = num_parts(count, _GROUP)
    return 2 * 2**NBITS + padded(2 * num_groups) + num_groups * (_GROUP * NBITS // 8)


@triton.jit
def _ceil_bits(values):
    """Return int32 ``MAGIC_BITS`` plus the ceiling of values from 0 to 2**22.

    An addition that rounds up is one instruction, and no value above 0 becomes 0; ``tl.ceil`` and a conversion are slower.
    """
    if _INTERPRETED:
        lifted = values + _MAGIC
        # the sign is set where the nearest integer lies below
        below = ((lifted - _MAGIC) - values).to(tl.int32, bitcast=True) >> 31
        result = lifted.to(tl.int32, bitcast=True) - below
    else:
        result = tl.inline_asm_elementwise(
            "add.rp.f32 $0, $1, 0f4B400000;", "=r,r", [values], tl.int32, is_pure=True, pack=1
        )
    return result


@triton.jit
def _spread(rows, WORDS: tl.constexpr):
    """Broadcast one number per group to one per word."""
    PER_ROW: tl.constexpr = WORDS // rows.shape[0]
    wide = tl.broadcast_to(rows[:, None], [rows.shape[0], PER_ROW])
    return tl.reshape(wide, [WORDS])


@triton.jit
def _max_rows(numbers, ROWS: tl.constexpr):
    PER_ROW: tl.constexpr = numbers.shape[0] // ROWS
    return tl.max(tl.reshape(tl.max(numbers, axis=1), [ROWS, PER_ROW]), axis=1)


@triton.jit
def _load_bits(places, mask, ROWS: tl.constexpr):
    """Return the bits of values as float32, and for each group whether a value is not finite.

    The second is only computed for float64, whose finite values may overflow float32. A float64 that would round to zero
    becomes the smallest float32.
    """
    if mask is None:
        raw = tl.load(places)
    else:
        raw = tl.load(places, mask=mask, other=0)
    bits = widened(raw, places).to(tl.int32, bitcast=True)
    nonfinite = tl.zeros([ROWS], tl.int32)
    if places.dtype.element_ty == tl.float64:
        bits |= (((bits & 0x7FFFFFFF) == 0) & (raw != 0)).to(tl.int32)
        nonfinite = _max_rows(1 - (tl.abs(raw) < float("inf")).to(tl.int32), ROWS)
    return bits, nonfinite


@triton.jit
def _peaks(bits, ROWS: tl.constexpr):
    """Return the bits of the largest magnitude of positive and of negative values of each group; negative if there is none."""
    return _max_rows(bits, ROWS), _max_rows(bits ^ _SIGN, ROWS)


@triton.jit
def _scaled(bits, nonfinite, is_wide: tl.constexpr, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """Return codes, magnitudes in units of the scale and sign masks of values, then stored scales and signedness of groups.

    ``nonfinite`` is what ``_load_bits`` returned, and is used if ``is_wide``, for float64 values.
    """
    WORDS: tl.constexpr = bits.shape[0]
    plus, minus = _peaks(bits, ROWS)
    peaks = tl.maximum(plus, minus)
    if not is_wide:
        nonfinite = (peaks >= _INFINITE).to(tl.int32)
    if tl.max(peaks, axis=0) >= _LIMIT:
        magnitudes = bits & 0x7FFFFFFF
        held = tl.minimum(magnitudes, _LIMIT - 1) | (bits & _SIGN)
        bits = tl.where(magnitudes > _INFINITE, 0, held)
        plus, minus = _peaks(bits, ROWS)
        peaks = tl.maximum(plus, minus)
    is_signed = (minus > 0).to(tl.int32)
    tops = ((2**NBITS - 1) >> is_signed).to(tl.int32)
    absmax = tl.maximum(peaks, 0).to(tl.float32, bitcast=True)
    wanted = tl.div_rn(absmax, tops.to(tl.float32)).to(tl.int32, bitcast=True)
    stored = (tl.maximum(wanted, _SMALLEST) + 0xFFFF) >> 16
    scales = (stored << 16).to(tl.float32, bitcast=True)
    inverse = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), scales)
    magnitudes = bits & 0x7FFFFFFF
    units = magnitudes.to(tl.float32, bitcast=True) * _spread(inverse, WORDS)[:, None]
    codes = tl.maximum(_ceil_bits(units) - MAGIC_BITS, tl.minimum(magnitudes, 1))
    codes = tl.minimum(codes, _spread(tops, WORDS)[:, None])
    marked = tl.where(nonfinite > 0, _NAN_SCALE, stored | (is_signed << 15))
    return codes, units, bits >> 31, marked, is_signed


@triton.jit
def _quantize(x_ptr, scales_ptr, data_ptr, limit, WHOLE: tl.constexpr, NBITS: tl.constexpr,
    PER_WORD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store scales and fields of a tile of ``limit`` values."""
    WORDS: tl.constexpr = ROWS * _GROUP // PER_WORD
    word, row, j = tl.arange(0, WORDS), tl.arange(0, ROWS), tl.arange(0, PER_WORD)[None, :]
    position = word[:, None] * PER_WORD + j
    bits, nonfinite = _load_bits(x_ptr + position, None if WHOLE else position < limit, ROWS)
    is_wide: tl.constexpr = x_ptr.dtype.element_ty == tl.float64
    codes, _, signs, marked, is_signed = _scaled(bits, nonfinite, is_wide, NBITS, ROWS)
    fields = (codes ^ signs) - signs
    # half of all fields, in every field of a word
    ONES: tl.constexpr = (2 ** (NBITS * PER_WORD) - 1) // (2**NBITS - 1) * 2 ** (NBITS - 1)
    BIAS: tl.constexpr = (ONES + 2**31) % 2**32 - 2**31
    packed = tl.sum(fields << (NBITS * j), axis=1) + _spread(is_signed, WORDS) * BIAS
    packed = packed.to(data_ptr.dtype.element_ty)
    if WHOLE:
        tl.store(scales_ptr + row, marked.to(tl.int16))
        tl.store(data_ptr + word, packed)
    else:
        tl.store(scales_ptr + row, marked.to(tl.int16), mask=row * _GROUP < limit)
        is_there = word // (_GROUP // PER_WORD) * _GROUP < limit
        tl.store(data_ptr + word, packed, mask=is_there)


@triton.jit
def _places(payload, count, tile, PER_WORD: tl.constexpr, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """Return pointers to the scales and the words of fields of a tile, for ``PER_WORD`` values per word."""
    WORD: tl.constexpr = (
        tl.uint8 if NBITS * PER_WORD == 8 else (tl.int16 if NBITS * PER_WORD == 16 else tl.int32)
    )
    scales = payload + 2 * 2**NBITS
    data = scales + padded(2 * num_parts(count, _GROUP))
    scales = scales.to(tl.pointer_type(tl.int16)) + tile * ROWS
    return scales, data.to(tl.pointer_type(WORD)) + tile * (ROWS * _GROUP // PER_WORD)


@triton.jit
def quantize_tile(x_ptr, count, payload, tile, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """Write scales and fields of the ``ROWS`` groups of a tile into the payload of ``count`` values."""
    PER_WORD: tl.constexpr = 8 if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else 4
    scales, data = _places(payload, count, tile, PER_WORD, NBITS, ROWS)
    x_ptr += tile * (ROWS * _GROUP)
    limit = tl.minimum(count - tile * (ROWS * _GROUP), ROWS * _GROUP).to(tl.int32)
    # a mask keeps loads from being wide, so only the last tile has one
    if limit == ROWS * _GROUP:
        _quantize(x_ptr, scales, data, limit, True, NBITS, PER_WORD, ROWS)
    else:
        _quantize(x_ptr, scales, data, limit, False, NBITS, PER_WORD, ROWS)


@triton.jit
def write_fractions(x_ptr, count, payload, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """Write the fractions of ``count`` values and the padding of the scales, reading ``ROWS`` sampled groups at a time.

    Sums count from the lower end of each bin: they stay near 16,384 times 65,536, which 31 bits hold. Sixteen values are
    added together with their number in the upper bits, which halves the work.
    """
    PER_WORD: tl.constexpr = 16
    WORDS: tl.constexpr = ROWS * _GROUP // PER_WORD
    is_wide: tl.constexpr = x_ptr.dtype.element_ty == tl.float64
    num_groups = num_parts(count, _GROUP)
    num_sampled = tl.minimum(num_groups, _NUM_SAMPLED).to(tl.int32)
    lane, j = tl.arange(0, 2**NBITS), tl.arange(0, PER_WORD)[None, :]
    sums, counts = tl.zeros([WORDS, 2**NBITS], tl.int32), tl.zeros([WORDS, 2**NBITS], tl.int32)
    within = tl.arange(0, WORDS) % (_GROUP // PER_WORD) * PER_WORD
    for first in range(0, num_sampled, ROWS):
        row = first + tl.arange(0, ROWS)
        start = row.to(tl.int64) * num_groups // num_sampled * _GROUP
        start = tl.where(row < num_sampled, start, count)
        position = (_spread(start, WORDS) + within)[:, None] + j
        # without this hint the values of a word would be spread over threads
        position = tl.max_contiguous(tl.multiple_of(position, (1, PER_WORD)), (1, PER_WORD))
        bits, nonfinite = _load_bits(x_ptr + position, position < count, ROWS)
        codes, units, _, _, _ = _scaled(bits, nonfinite, is_wide, NBITS, ROWS)
        parts = (units * 65536.0).to(tl.int32) - ((codes - 1) << 16) + (1 << 22)
        for code in tl.static_range(1, 2**NBITS):
            found = tl.sum(tl.where(codes == code, parts, 0), axis=1)[:, None]
            sums += tl.where(lane[None, :] == code - 1, found & 0x3FFFFF, 0)
            counts += tl.where(lane[None, :] == code - 1, found >> 22, 0)
    sums, counts = tl.sum(sums, axis=0), tl.sum(counts, axis=0)
    means = tl.where(counts > 0, sums // tl.maximum(counts, 1) - 1, _MIDDLE)
    least = tl.where(lane == 0, _LEAST_FRACTION, 0)
    fractions = tl.minimum(tl.maximum(means, least), 0xFFFF)
    fractions = tl.where(lane == 2**NBITS - 1, 0, fractions)
    tl.store(payload.to(tl.pointer_type(tl.int16)) + lane, fractions.to(tl.int16))
    end = 2 * num_groups
    store_zeros(payload + 2 * 2**NBITS + end, padded(end) - end, 8)


@triton.jit
def _level_table(payload, is_there, NBITS: tl.constexpr):
    """Return what fields decode to in a group of scale 1: first in unsigned groups, then in signed ones."""
    lane = tl.arange(0, 2 * 2**NBITS)
    code = lane % 2**NBITS - lane // 2**NBITS * 2 ** (NBITS - 1)
    magnitude = tl.abs(code)
    place = payload.to(tl.pointer_type(tl.int16)) + magnitude - 1
    fraction = tl.load(place, mask=(magnitude > 0) & is_there, other=0).to(tl.int32) & 0xFFFF
    level = (((magnitude - 1) << 16) + fraction + 1).to(tl.float32) * 2.0**-16
    level = tl.where(code < 0, -level, level)
    return tl.where(code == 0, 0.0, level)


@triton.jit
def _in_dtype(values, out_ptr):
    """Clamp values for float16 output: none becomes infinite, and only zeros become zero. NaN stays NaN."""
    if out_ptr.dtype.element_ty == tl.float16:
        held = tl.minimum(tl.maximum(tl.abs(values), 2.0**-24), 65504.0)
        held = tl.where(values < 0, -held, held)
        values = tl.where(
            tl.abs(values) <= float("inf"), tl.where(values == 0, values, held), values
        )
    return values


@triton.jit
def _dequantize(out_ptr, scales_ptr, data_ptr, table, limit, WHOLE: tl.constexpr, NBITS: tl.constexpr,
    PER_WORD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decode a tile of ``limit`` values."""
    WORDS: tl.constexpr = ROWS * _GROUP // PER_WORD
    word, row, j = tl.arange(0, WORDS), tl.arange(0, ROWS), tl.arange(0, PER_WORD)[None, :]
    if WHOLE:
        stored, packed = tl.load(scales_ptr + row), tl.load(data_ptr + word)
    else:
        stored = tl.load(scales_ptr + row, mask=row * _GROUP < limit, other=0)
        is_there = word // (_GROUP // PER_WORD) * _GROUP < limit
        packed = tl.load(data_ptr + word, mask=is_there, other=0)
    factors = ((stored.to(tl.int32) & 0x7FFF) << 16).to(tl.float32, bitcast=True)
    is_signed = (stored.to(tl.int32) >> 15) & 1
    fields = (packed.to(tl.int32)[:, None] >> (NBITS * j)) & (2**NBITS - 1)
    fields |= _spread(is_signed << NBITS, WORDS)[:, None]
    levels = tl.reshape(
        tl.gather(table, tl.reshape(fields, [WORDS * PER_WORD]), 0), [WORDS, PER_WORD]
    )
    values = levels * _spread(factors, WORDS)[:, None]
    position = word[:, None] * PER_WORD + j
    mask = None if WHOLE else position < limit
    if tl.max(stored.to(tl.int32) & 0x7FFF, axis=0) < _INFINITE >> 16:
        store_values(out_ptr + position, _in_dtype(values, out_ptr), mask, True, False)
    else:
        # the NaN that arithmetic produces differs between devices
        values = tl.where(tl.abs(values) <= float("inf"), values, float("nan"))
        store_values(out_ptr + position, _in_dtype(values, out_ptr), mask, False, False)


@triton.jit
def dequantize_tile(
    payload, is_whole, out_ptr, count, tile, NBITS: tl.constexpr, ROWS: tl.constexpr
):
    """Decode the ``ROWS`` groups of a tile of ``count`` values; do nothing unless ``is_whole``."""
    PER_WORD: tl.constexpr = 8 if out_ptr.dtype.element_ty.primitive_bitwidth == 16 else 4
    table = _level_table(payload, is_whole, NBITS)
    scales, data = _places(payload, count, tile, PER_WORD, NBITS, ROWS)
    out_ptr += tile * (ROWS * _GROUP)
    limit = tl.minimum(count - tile * (ROWS * _GROUP), ROWS * _GROUP).to(tl.int32)
    limit = tl.where(is_whole, limit, 0)
    if limit == ROWS * _GROUP:
        _dequantize(out_ptr, scales, data, table, limit, True, NBITS, PER_WORD, ROWS)
    else:
        _dequantize(out_ptr, scales, data, table, limit, False, NBITS, PER_WORD, ROWS)


@jit_kernel(do_not_specialize=["count", "payload"])
def _fractions_kernel(x_ptr, count, payload, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """A single program runs ``write_fractions``."""
    write_fractions(x_ptr, count, payload, NBITS, ROWS)


@jit_kernel(do_not_specialize=["count", "payload"])
def _quantize_kernel(x_ptr, count, payload, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """One program quantizes a tile."""
    quantize_tile(x_ptr, count, payload, tl.program_id(0).to(tl.int64), NBITS, ROWS)


@jit_kernel(do_not_specialize=["count", "payload"])
def _dequantize_kernel(payload, out_ptr, count, NBITS: tl.constexpr, ROWS: tl.constexpr):
    """One program decodes a tile."""
    dequantize_tile(payload, True, out_ptr, count, tl.program_id(0).to(tl.int64), NBITS, ROWS)


def mask_quantize(x: torch.Tensor, nbits: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """See ``reference.mask_quantize``."""
    numel = x.numel()
    if out is None:
        nbytes = layout.payload_nbytes(numel, nbits)
        out = torch.empty(nbytes, dtype=torch.uint8, device=x.device)
    values = carrier(x)
    with torch.cuda.device_of(x):
        _fractions_kernel[(1,)](
            values, numel, out, NBITS=nbits, ROWS=SAMPLED_ROWS, num_warps=SAMPLING_WARPS
        )
        if numel:
            tiles = ceil_div(numel, TILE)
            _quantize_kernel[(tiles,)](values, numel, out, NBITS=nbits, ROWS=ROWS, num_warps=1)
    return out


def mask_dequantize(payload: torch.Tensor, nbits: int, out: torch.Tensor) -> None:
    """See ``reference.mask_dequantize``."""
    numel = out.numel()
    if numel:
        with torch.cuda.device_of(payload):
            _dequantize_kernel[(ceil_div(numel, TILE),)](
                payload, carrier(out.view(-1)), numel, NBITS=nbits, ROWS=ROWS, num_warps=1
            )
