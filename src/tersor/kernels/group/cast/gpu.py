"""Scaled casts to 8-bit floats in Triton.

Rounding works on the bits, because a GPU's own conversion saturates infinities and Triton's
differs between versions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.group.cast.layout import TILE
from tersor.kernels.group.cast.reference import SMALLEST
from tersor.kernels.group.gpu.generic import magnitudes
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.transform.gpu import load_values, store_values

_SMALLEST_E4M3 = tl.constexpr(SMALLEST[torch.float8_e4m3fn])
_SMALLEST_E5M2 = tl.constexpr(SMALLEST[torch.float8_e5m2])


@triton.jit
def _rounded(values, IS_E4M3: tl.constexpr):
    """Round float32 values to 8-bit floats, to nearest with ties to even; return their bytes."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    NUM_DROPPED: tl.constexpr = 20 if IS_E4M3 else 21
    # the difference of the exponent biases, and the float32 bits of the format's smallest normal number
    REBIAS: tl.constexpr = (120 if IS_E4M3 else 112) << 23
    NORMAL: tl.constexpr = (121 if IS_E4M3 else 113) << 23
    # adding this leaves a subnormal result, rounded by the addition, in the low bits
    LIFT: tl.constexpr = 2.0**14 if IS_E4M3 else 2.0**7
    LIFT_BITS: tl.constexpr = (141 if IS_E4M3 else 134) << 23
    half = (1 << (NUM_DROPPED - 1)) - 1 + ((magnitude >> NUM_DROPPED) & 1)
    normal = (magnitude - REBIAS + half) >> NUM_DROPPED
    subnormal = (tl.abs(values) + LIFT).to(tl.int32, bitcast=True) - LIFT_BITS
    result = tl.where(magnitude < NORMAL, subnormal, normal)
    sign = (bits >> 24) & 0x80
    if IS_E4M3:
        result = tl.where(magnitude < 0x7F800000, result | sign, 0x7F)
    else:
        result = tl.where(magnitude == 0x7F800000, 0x7C, result) | sign
        result = tl.where(magnitude > 0x7F800000, 0x7F, result)
    return result.to(tl.uint8)


@triton.jit
def cast_groups(
    x_ptr,
    num_values,
    scales_ptr,
    out_ptr,
    tile,
    group,
    TOP: tl.constexpr,
    IS_E4M3: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Cast the ``GROUPS`` groups of a tile: one pass finds the largest magnitudes, another rounds.

    Args:
        x_ptr: ``num_values`` values of any float dtype, as ``transform.gpu.load_values`` reads them.
        num_values: number of values of the tensor; its last group may be partial.
        scales_ptr: receives one float32 per group.
        out_ptr: receives one byte per value.
        tile: index of the tile.
        group: values per scale.
        TOP: the largest value of the format.
        IS_E4M3: True for e4m3fn, False for e5m2.
        GROUPS: groups per tile, from ``tile_of``.
        CHUNK: values of each group per step, from ``tile_of``.
    """
    groups = tile * GROUPS + tl.arange(0, GROUPS)
    keys = tl.full([GROUPS], 0x00800000, tl.int32)
    for start in range(0, group, CHUNK):
        i = start + tl.arange(0, CHUNK)
        at = groups[:, None] * group + i[None, :]
        inside = (at < num_values) & (i < group)[None, :]
        keys = tl.maximum(keys, tl.max(magnitudes(load_values(x_ptr, None, at, inside, 0)), axis=1))
    absmax = (keys - 0x00800000).to(tl.float32, bitcast=True)
    smallest: tl.constexpr = _SMALLEST_E4M3 if IS_E4M3 else _SMALLEST_E5M2
    live = absmax >= smallest
    top = tl.full([GROUPS], TOP, tl.float32)
    known = groups * group < num_values
    tl.store(scales_ptr + groups, tl.where(live, tl.div_rn(absmax, top), 1.0), mask=known)
    inverse = tl.where(live, tl.div_rn(top, tl.where(live, absmax, 1.0)), 1.0)[:, None]
    for start in range(0, group, CHUNK):
        i = start + tl.arange(0, CHUNK)
        at = groups[:, None] * group + i[None, :]
        inside = (at < num_values) & (i < group)[None, :]
        values = load_values(x_ptr, None, at, inside, 0)
        scaled = tl.where(tl.abs(values) < float("inf"), values * inverse, values)
        tl.store(out_ptr + at, _rounded(scaled, IS_E4M3), mask=inside)


@triton.jit
def uncast_groups(
    data_ptr,
    scales_ptr,
    out_ptr,
    num_values,
    tile,
    group,
    IS_E4M3: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Widen and scale ``CHUNK`` values of ``GROUPS`` groups into ``out_ptr``, of any float dtype.

    A group of more than ``CHUNK`` values takes several tiles.
    """
    num_chunks = (group + CHUNK - 1) // CHUNK
    groups = (tile // num_chunks) * GROUPS + tl.arange(0, GROUPS)
    i = (tile % num_chunks) * CHUNK + tl.arange(0, CHUNK)
    at = groups[:, None] * group + i[None, :]
    inside = (at < num_values) & (i < group)[None, :]
    scales = tl.load(scales_ptr + groups, mask=groups * group < num_values, other=0.0)[:, None]
    byte = tl.load(data_ptr + at, mask=inside, other=0).to(tl.int32)
    sign = (byte & 0x80) << 24
    NUM_DROPPED: tl.constexpr = 20 if IS_E4M3 else 21
    REBIAS: tl.constexpr = 2.0**120 if IS_E4M3 else 2.0**112
    bits = (byte & 0x7F) << NUM_DROPPED
    exact = (bits | sign).to(tl.float32, bitcast=True) * REBIAS
    special = (bits | sign | 0x7F800000).to(tl.float32, bitcast=True)
    FIRST_SPECIAL: tl.constexpr = 0x7F if IS_E4M3 else 0x7C
    is_special = (byte & 0x7F) >= FIRST_SPECIAL
    # infinities and NaN bypass the product, which would change the bits of a NaN
    values = tl.where(is_special, special, exact * scales)
    store_values(out_ptr + at, values, inside, False, False)


@jit_kernel()
def _cast_kernel(
    x_ptr,
    num_values,
    scales_ptr,
    out_ptr,
    group,
    TOP: tl.constexpr,
    IS_E4M3: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program casts ``GROUPS`` groups."""
    tile = tl.program_id(0).to(tl.int64)
    cast_groups(x_ptr, num_values, scales_ptr, out_ptr, tile, group, TOP, IS_E4M3, GROUPS, CHUNK)


@jit_kernel()
def _uncast_kernel(
    data_ptr,
    scales_ptr,
    out_ptr,
    num_values,
    group,
    IS_E4M3: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program widens and scales ``CHUNK`` values of ``GROUPS`` groups."""
    tile = tl.program_id(0).to(tl.int64)
    uncast_groups(data_ptr, scales_ptr, out_ptr, num_values, tile, group, IS_E4M3, GROUPS, CHUNK)


def tile_of(group: int) -> tuple[int, int]:
    """Return how many groups a program holds, and how many values of each at a time."""
    chunk = min(triton.next_power_of_2(group), TILE)
    return TILE // chunk, chunk


def scaled_cast(
    x: torch.Tensor, dtype: torch.dtype, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.scaled_cast``."""
    num_groups = x.numel() // group
    scales = torch.empty(num_groups, dtype=torch.float32, device=x.device)
    cast = torch.empty(x.numel(), dtype=torch.uint8, device=x.device)
    groups, chunk = tile_of(group)
    if num_groups:
        with torch.cuda.device_of(x):
            _cast_kernel[(ceil_div(num_groups, groups),)](
                x,
                x.numel(),
                scales,
                cast,
                group,
                TOP=torch.finfo(dtype).max,
                IS_E4M3=dtype == torch.float8_e4m3fn,
                GROUPS=groups,
                CHUNK=chunk,
            )
    return scales, cast.view(dtype)


def scaled_uncast(data: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """See ``reference.scaled_uncast``."""
    out = torch.empty(data.numel(), dtype=torch.float32, device=data.device)
    groups, chunk = tile_of(group)
    if out.numel():
        num_tiles = ceil_div(scales.numel(), groups) * ceil_div(group, chunk)
        with torch.cuda.device_of(data):
            _uncast_kernel[(num_tiles,)](
                data.view(torch.uint8),
                scales,
                out,
                out.numel(),
                group,
                IS_E4M3=data.dtype == torch.float8_e4m3fn,
                GROUPS=groups,
                CHUNK=chunk,
            )
    return out
