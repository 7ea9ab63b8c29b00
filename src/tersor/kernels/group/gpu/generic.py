"""Group quantization in Triton for any even group size: scaling, rounding, and byte-wise kernels.

These kernels handle what the fast ones of ``group.gpu`` do not: group sizes that are not a power of
two, very small or very large, and data that does not start at a multiple of four bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.group.reference import SMALLEST_ABSMAX, largest_scale
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.transform.gpu import carrier, load_values, store_values

_CHUNK: Final = 2048
_SMALLEST = tl.constexpr(SMALLEST_ABSMAX)
_LARGEST_8, _LARGEST_4 = tl.constexpr(largest_scale(8)), tl.constexpr(largest_scale(4))
HASH_STEP = tl.constexpr(0x9E3779B1)
# added to a float32 below 2**22, this leaves the nearest integer in the low bits, ties to even
_MAGIC, MAGIC_BITS = tl.constexpr(1.5 * 2.0**23), tl.constexpr(0x4B400000)
# Triton's interpreter cannot run PTX
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class PackedGroups(NamedTuple):
    """The quantized groups of several senders, as kernels take them."""

    data: torch.Tensor
    data_stride: int
    scales: torch.Tensor
    scales_stride: int
    num_senders: int

    @classmethod
    def of(cls, data: torch.Tensor, scales: torch.Tensor) -> PackedGroups:
        """Take ``data`` and ``scales`` with one row per sender."""
        return cls(data, data.stride(0), scales, scales.stride(0), len(scales))


@triton.jit
def magnitudes(values):
    """Return int32 keys that sort like magnitudes; the keys of values that are not finite are negative."""
    return (values.to(tl.int32, bitcast=True) & 0x7FFFFFFF) + 0x00800000


@triton.jit
def scales_of(keys, NBITS: tl.constexpr):
    """Return scales and their reciprocals for the largest key of each group."""
    absmax = (tl.maximum(keys, 0x00800000) - 0x00800000).to(tl.float32, bitcast=True)
    live = absmax >= _SMALLEST
    divisor = tl.where(live, absmax, 1.0)
    top = tl.zeros_like(absmax) + (2 ** (NBITS - 1) - 1.0)
    largest: tl.constexpr = _LARGEST_8 if NBITS == 8 else _LARGEST_4
    scales = tl.where(live, tl.minimum(tl.div_rn(absmax, top), largest), 0.0)
    return scales, tl.where(live, tl.div_rn(top, divisor), 0.0)


@triton.jit
def hashes_of(positions, low):
    """Return the first stage of the hash of each position: ``HASH_STEP * position + low``."""
    return positions.to(tl.uint32) * HASH_STEP + low.to(tl.uint32)


@triton.jit
def shifted(scaled, hashes, high):
    """Return ``scaled`` plus uniform numbers in [0, 1); see ``reference.uniform``."""
    h = (hashes ^ (hashes >> 16) ^ high.to(tl.uint32)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    # 24 bits are left, so conversion and product are exact, and fusing them with the sum changes nothing
    h = (h ^ (h >> 16)) & 0xFFFFFF00
    return tl.fma(h.to(tl.float32), 2.0**-32, scaled)


@triton.jit
def floor_bits(values):
    """Return int32 ``MAGIC_BITS`` plus the floor of values below 2**22 in magnitude.

    ``tl.floor`` flushes a negative subnormal to zero on a GPU. Adding ``_MAGIC`` with rounding down is
    one instruction instead of four; with Hadamard, ncu counted 32 per value with four.
    """
    if _INTERPRETED:
        lifted = values + _MAGIC
        # the sign is set where the nearest integer lies above
        above = (values - (lifted - _MAGIC)).to(tl.int32, bitcast=True) >> 31
        result = lifted.to(tl.int32, bitcast=True) + above
    else:
        result = tl.inline_asm_elementwise(
            "add.rm.f32 $0, $1, 0f4B400000;", "=r,r", [values], tl.int32, is_pure=True, pack=1
        )
    return result


@triton.jit
def _rounded(values, inverse, hashes, high, STOCHASTIC: tl.constexpr):
    """Return int32 ``MAGIC_BITS`` plus codes; values that are not finite give numbers far from any code."""
    scaled = values * inverse
    if STOCHASTIC:
        result = floor_bits(shifted(scaled, hashes, high))
    else:
        result = (scaled + _MAGIC).to(tl.int32, bitcast=True)
    return result


@triton.jit
def codes_of(values, inverse, hashes, high, NBITS: tl.constexpr, STOCHASTIC: tl.constexpr):
    """Return int32 ``MAGIC_BITS`` plus the codes of finite values."""
    top: tl.constexpr = 2 ** (NBITS - 1) - 1
    codes = _rounded(values, inverse, hashes, high, STOCHASTIC)
    if STOCHASTIC:
        codes = tl.minimum(tl.maximum(codes, MAGIC_BITS - top), MAGIC_BITS + top)
    return codes


@triton.jit
def fields_of(values, inverse, hashes, high, NBITS: tl.constexpr, STOCHASTIC: tl.constexpr):
    """Return int32 fields, 0 for values that are not finite."""
    bias: tl.constexpr = 2 ** (NBITS - 1)
    fields = _rounded(values, inverse, hashes, high, STOCHASTIC) - (MAGIC_BITS - bias)
    if STOCHASTIC:
        clamped = tl.minimum(tl.maximum(fields, 1), 2 * bias - 1)
        result = tl.where(fields.to(tl.uint32) <= 2 * bias, clamped, 0)
    else:
        result = tl.where(fields.to(tl.uint32) < 2 * bias, fields, 0)
    return result


@triton.jit
def values_of(fields, scales, NBITS: tl.constexpr):
    """Return the float32 values of int32 fields."""
    # the bits of 2**23 + field, without a slow conversion
    lifted = (fields | 0x4B000000).to(tl.float32, bitcast=True)
    values = (lifted - (2.0**23 + 2 ** (NBITS - 1))) * scales
    return tl.where(fields == 0, float("nan"), values)


@jit_kernel(do_not_specialize=["low", "high"])
def _quantize_kernel(
    x_ptr,
    base_ptr,
    num_values,
    scales_ptr,
    data_ptr,
    num_groups,
    group,
    low,
    high,
    NBITS: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program quantizes ``GROUPS`` groups: one pass finds the largest magnitudes, another rounds."""
    half = group // 2
    groups = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    keys = tl.zeros([GROUPS], tl.int32)
    for start in range(0, half, CHUNK):
        i = start + tl.arange(0, CHUNK)
        inside = (groups < num_groups)[:, None] & (i < half)[None, :]
        at = groups[:, None] * group + i[None, :]
        lower = load_values(x_ptr, base_ptr, at, inside & (at < num_values), 0)
        upper = load_values(x_ptr, base_ptr, at + half, inside & (at + half < num_values), 0)
        keys = tl.maximum(keys, tl.max(tl.maximum(magnitudes(lower), magnitudes(upper)), axis=1))
    scales, inverse = scales_of(keys, NBITS)
    tl.store(scales_ptr + groups, scales, mask=groups < num_groups)
    inverse = inverse[:, None]
    for start in range(0, half, CHUNK):
        i = start + tl.arange(0, CHUNK)
        inside = (groups < num_groups)[:, None] & (i < half)[None, :]
        at = groups[:, None] * group + i[None, :]
        lower = load_values(x_ptr, base_ptr, at, inside & (at < num_values), 0)
        upper = load_values(x_ptr, base_ptr, at + half, inside & (at + half < num_values), 0)
        first = fields_of(lower, inverse, hashes_of(at, low), high, NBITS, STOCHASTIC)
        second = fields_of(upper, inverse, hashes_of(at + half, low), high, NBITS, STOCHASTIC)
        if NBITS == 8:
            tl.store(data_ptr + at, first.to(tl.uint8), mask=inside)
            tl.store(data_ptr + at + half, second.to(tl.uint8), mask=inside)
        else:
            packed = (first | (second << 4)).to(tl.uint8)
            tl.store(data_ptr + groups[:, None] * half + i[None, :], packed, mask=inside)


@triton.jit
def _read_values(fields_ptr, half, inside, scales_ptr, known, NBITS: tl.constexpr):
    """Return the values of the fields pointed to, and of those half a group later."""
    scales = tl.load(scales_ptr, mask=known, other=0.0)[:, None]
    first = tl.load(fields_ptr, mask=inside, other=0).to(tl.int32)
    if NBITS == 8:
        second = tl.load(fields_ptr + half, mask=inside, other=0).to(tl.int32)
    else:
        second = first >> 4
        first = first & 15
    return values_of(first, scales, NBITS), values_of(second, scales, NBITS)


@jit_kernel()
def _dequantize_kernel(
    sent,
    num_groups,
    group,
    num_chunks,
    out_ptr,
    num_values,
    NBITS: tl.constexpr,
    ADD: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program sums ``CHUNK`` fields of both halves of ``GROUPS`` groups over all senders."""
    half = group // 2
    tile = tl.program_id(0).to(tl.int64)
    groups = (tile // num_chunks) * GROUPS + tl.arange(0, GROUPS)
    i = (tile % num_chunks) * CHUNK + tl.arange(0, CHUNK)
    known = groups < num_groups
    inside = known[:, None] & (i < half)[None, :]
    at = groups[:, None] * group + i[None, :]
    fields_ptr = sent.data + (at if NBITS == 8 else groups[:, None] * half + i[None, :])
    scales_ptr = sent.scales + groups
    lower, upper = _read_values(fields_ptr, half, inside, scales_ptr, known, NBITS)
    for _ in range(1, sent.num_senders):
        fields_ptr += sent.data_stride
        scales_ptr += sent.scales_stride
        first, second = _read_values(fields_ptr, half, inside, scales_ptr, known, NBITS)
        lower += first
        upper += second
    store_values(out_ptr + at, lower, inside & (at < num_values), False, ADD)
    store_values(out_ptr + at + half, upper, inside & (at + half < num_values), False, ADD)


def seed_words(seed: int | None, position: int = 0) -> tuple[int, int]:
    """Return the two words of a seed for values from ``position`` on.

    They are in the range of int32, so that a kernel sees one type.
    """
    low, high = (seed or 0) + position * HASH_STEP.value, ((seed or 0) >> 32) & 0xFFFFFFFF
    low &= 0xFFFFFFFF
    return (low ^ 0x80000000) - 0x80000000, (high ^ 0x80000000) - 0x80000000


def _tile(group: int) -> tuple[int, int]:
    """Return the groups per program, and the fields of each half that it handles at a time."""
    chunk = min(triton.next_power_of_2(group // 2), _CHUNK)
    return _CHUNK // chunk, chunk


def quantize_any_group(
    x: torch.Tensor,
    base: torch.Tensor | None,
    nbits: int,
    group: int,
    seed: tuple[int, int] | None,
    out: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Write scales and data of the flat ``x - base``, padded with zeros to whole groups.

    ``seed`` is what ``seed_words`` returns, or None to round to nearest.
    """
    scales, data = out
    groups, chunk = _tile(group)
    with torch.cuda.device_of(x):
        _quantize_kernel[(ceil_div(scales.numel(), groups),)](
            carrier(x),
            None if base is None else carrier(base),
            x.numel(),
            scales,
            data,
            scales.numel(),
            group,
            *(seed or (0, 0)),
            NBITS=nbits,
            STOCHASTIC=seed is not None,
            GROUPS=groups,
            CHUNK=chunk,
        )


def dequantize_any_group(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out: torch.Tensor,
    *,
    add: bool,
) -> None:
    """Write the sum over senders, the rows of ``data`` and ``scales``, into the flat ``out``, or add it."""
    groups, chunk = _tile(group)
    num_chunks = ceil_div(group // 2, chunk)
    num_groups = scales.shape[1]
    with torch.cuda.device_of(data):
        _dequantize_kernel[(ceil_div(num_groups, groups) * num_chunks,)](
            PackedGroups.of(data, scales),
            num_groups,
            group,
            num_chunks,
            carrier(out),
            out.numel(),
            NBITS=nbits,
            ADD=add,
            GROUPS=groups,
            CHUNK=chunk,
        )
