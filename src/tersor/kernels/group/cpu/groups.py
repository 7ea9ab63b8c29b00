"""Quantization and decoding of contiguous groups in numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tersor.kernels.group.reference import SMALLEST_ABSMAX, largest_scale
from tersor.kernels.runtime.cpu.intrinsics import array_at, njit

HASH_STEP = 0x9E3779B1
_BLOCK = 64
_SMALLEST_BITS = int(np.float32(SMALLEST_ABSMAX).view(np.int32))


@njit(nogil=True, cache=True, inline="always")
def uniform(h: Any, high: Any) -> Any:
    """Return a number in [0, 1) from ``h = position * HASH_STEP + low``, uint32; see ``reference.uniform``."""
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16)) ^ high) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    # 24 bits: conversion from a signed integer is exact, and one instruction on every processor
    return np.float32(np.int32(h >> np.uint32(8))) * np.float32(2.0**-24)


@njit(nogil=True, cache=True, inline="always")
def _field(value: Any, inverse: Any, top: Any, stochastic: bool, h: Any, high: Any) -> Any:
    """Return the field of one value; 0 if the value is not finite."""
    finite = abs(value) <= np.float32(3.4028235e38)
    scaled = (value if finite else np.float32(0)) * inverse
    code = np.floor(scaled + uniform(h, high)) if stochastic else np.rint(scaled)
    code = min(max(code, -top), top) + np.float32(top + np.float32(1))
    return np.uint8(np.int32(code)) if finite else np.uint8(0)


@njit(nogil=True, cache=True)
def _group_fields(values: Any, inverse: Any, top: Any, rounding: Any, at: int, fields: Any) -> None:
    """Write one group's fields as bytes."""
    stride, high = np.uint32(HASH_STEP), rounding.high
    start = np.uint32(np.uint32(at) * stride + rounding.low)
    if not rounding.stochastic:
        for i in range(values.size):
            fields[i] = _field(values[i], inverse, top, False, start, high)
        return
    # the loop over a block of constant size is unrolled, which hides the latency of multiplications
    # (0.31 instead of 0.42 ns per value on a Zen 4)
    num_whole = values.size // _BLOCK * _BLOCK
    for first in range(0, num_whole, _BLOCK):
        block, target = values[first : first + _BLOCK], fields[first : first + _BLOCK]
        h = np.uint32(start + np.uint32(np.uint32(first) * stride))
        for i in range(_BLOCK):
            own = np.uint32(h + np.uint32(np.uint32(i) * stride))
            target[i] = _field(block[i], inverse, top, True, own, high)
    for i in range(num_whole, values.size):
        own = np.uint32(start + np.uint32(np.uint32(i) * stride))
        fields[i] = _field(values[i], inverse, top, True, own, high)


class Rounding(NamedTuple):
    """How values are rounded to codes, as kernels take it."""

    nbits: int
    limit: Any
    stochastic: bool
    low: Any
    high: Any

    @classmethod
    def of(cls, nbits: int, seed: int | None) -> Rounding:
        """Convert the arguments of ``reference.group_quantize``."""
        low, high = ((seed or 0) >> shift & 0xFFFFFFFF for shift in (0, 32))
        limit = np.float32(largest_scale(nbits))
        return cls(nbits, limit, seed is not None, np.uint32(low), np.uint32(high))


@njit(nogil=True, cache=True)
def quantize_groups(
    values: Any, bits: Any, at: int, rounding: Any, scales: Any, data: Any, start: int, stop: int
) -> None:
    """Quantize groups ``[start, stop)`` of ``values``.

    ``bits`` is the integer view of ``values``. The first value has position ``at`` for stochastic rounding.
    """
    nbits = rounding.nbits
    group = values.shape[1]
    top = np.float32((1 << (nbits - 1)) - 1)
    fields = np.empty(group, dtype=np.uint8)
    half = group // 2
    for g in range(start, stop):
        image = bits[g]
        # an integer maximum of the magnitudes' bits vectorises; a float comparison would not
        peak = np.int32(0)
        for i in range(group):
            magnitude = np.int32(image[i] & np.int32(0x7FFFFFFF))
            peak = max(peak, magnitude if magnitude < np.int32(0x7F800000) else np.int32(0))
        inverse, scale = np.float32(0), np.float32(0)
        if peak >= np.int32(_SMALLEST_BITS):
            absmax = np.int32(peak).view(np.float32)
            inverse = np.float32(top / absmax)
            scale = min(np.float32(absmax / top), rounding.limit)
        scales[g] = scale
        target = fields if nbits == 4 else data[g]
        _group_fields(values[g], inverse, top, rounding, at + g * group, target)
        if nbits == 4:
            row = data[g]
            for i in range(half):
                row[i] = np.uint8(fields[i] | np.uint8(fields[half + i] << np.uint8(4)))


@njit(nogil=True, cache=True)
def dequantize_groups(data: Any, scales: Any, nbits: int, out: Any, start: int, stop: int) -> None:
    """Write the float32 values of groups ``[start, stop)``."""
    half = out.shape[1] // 2
    bias = np.float32(1 << (nbits - 1))
    nan = np.float32(np.nan)
    for g in range(start, stop):
        scale, row, target = scales[g], data[g], out[g]
        if nbits == 4:
            for i in range(half):
                low, high = np.uint8(row[i] & np.uint8(15)), np.uint8(row[i] >> np.uint8(4))
                a, b = (np.float32(low) - bias) * scale, (np.float32(high) - bias) * scale
                target[i] = a if low != 0 else nan
                target[half + i] = b if high != 0 else nan
        else:
            for i in range(row.size):
                value = (np.float32(row[i]) - bias) * scale
                target[i] = value if row[i] != 0 else nan


@njit(nogil=True, cache=True)
def sum_senders(
    data_addresses: Any, scale_addresses: Any, nbits: int, first: int, stage: Any, addend: Any
) -> None:
    """Fill ``stage`` with the groups from ``first`` on, summed over senders, given by their addresses."""
    count, group = stage.shape
    row_nbytes = group * nbits // 8
    octets, floats = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.float32)
    for sender in range(data_addresses.size):
        address = data_addresses[sender] + np.uint64(first * row_nbytes)
        data = array_at(address, count * row_nbytes, octets).reshape(count, row_nbytes)
        scales = array_at(scale_addresses[sender] + np.uint64(4 * first), count, floats)
        dequantize_groups(data, scales, nbits, stage if sender == 0 else addend, 0, count)
        if sender != 0:
            for g in range(count):
                stage[g] += addend[g]
