"""Group quantization in numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

from tersor.kernels import threads
from tersor.kernels.group.reference import SMALLEST_ABSMAX, largest_scale
from tersor.raw_bytes import empty

_SMALLEST_BITS = int(np.float32(SMALLEST_ABSMAX).view(np.int32))


@njit(nogil=True, cache=True, inline="always")
def _uniform(position: int, low: Any, high: Any) -> Any:
    h = np.uint32(np.uint32(position) * np.uint32(0x9E3779B1) + low)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16)) ^ high) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    return np.float32(np.uint32(h >> np.uint32(8))) * np.float32(2.0**-24)


@njit(nogil=True, cache=True)
def _group_fields(
    values: Any, inverse: Any, top: Any, stochastic: bool, low: Any, high: Any, at: int, fields: Any
) -> None:
    """Write one group's fields as bytes; 0 marks values that are not finite."""
    bias = np.float32(top + np.float32(1))
    for i in range(values.size):
        finite = abs(values[i]) <= np.float32(3.4028235e38)
        scaled = (values[i] if finite else np.float32(0)) * inverse
        code = np.floor(scaled + _uniform(at + i, low, high)) if stochastic else np.rint(scaled)
        code = min(max(code, -top), top) + bias
        fields[i] = np.uint8(np.int32(code)) if finite else np.uint8(0)


@njit(nogil=True, cache=True)
def _quantize_kernel(
    values: Any,
    bits: Any,
    nbits: int,
    limit: Any,
    stochastic: bool,
    low: Any,
    high: Any,
    scales: Any,
    data: Any,
    start: int,
    stop: int,
) -> None:
    """Quantize groups ``[start, stop)``; ``bits`` is the integer image of ``values``."""
    group = values.shape[1]
    top = np.float32((1 << (nbits - 1)) - 1)
    fields = np.empty(group, dtype=np.uint8)
    half = group // 2
    for g in range(start, stop):
        image = bits[g]
        # integer maximum of the magnitudes' bits vectorises; float comparison would not
        peak = np.int32(0)
        for i in range(group):
            magnitude = np.int32(image[i] & np.int32(0x7FFFFFFF))
            peak = max(peak, magnitude if magnitude < np.int32(0x7F800000) else np.int32(0))
        inverse, scale = np.float32(0), np.float32(0)
        if peak >= np.int32(_SMALLEST_BITS):
            absmax = np.int32(peak).view(np.float32)
            inverse = np.float32(top / absmax)
            scale = min(np.float32(absmax / top), limit)
        scales[g] = scale
        target = fields if nbits == 4 else data[g]
        _group_fields(values[g], inverse, top, stochastic, low, high, g * group, target)
        if nbits == 4:
            row = data[g]
            for i in range(half):
                row[i] = np.uint8(fields[i] | np.uint8(fields[half + i] << np.uint8(4)))


def group_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.group_quantize``."""
    values = x.numpy().reshape(-1, group)
    scales, data = out or (
        empty((len(values),), torch.float32, x.device),
        empty((x.numel() * nbits // 8,), torch.uint8, x.device),
    )
    low = np.uint32((seed or 0) & 0xFFFFFFFF)
    high = np.uint32(((seed or 0) >> 32) & 0xFFFFFFFF)
    bits = values.view(np.int32)
    limit = np.float32(largest_scale(nbits))
    rows = data.numpy().reshape(len(values), group * nbits // 8)
    arguments = (values, bits, nbits, limit, seed is not None, low, high, scales.numpy(), rows)
    parts = threads.split(len(values), 4 * group)
    threads.run(_quantize_kernel, [(*arguments, s, e) for s, e in parts])
    return scales, data


@njit(nogil=True, cache=True)
def _dequantize_kernel(data: Any, scales: Any, nbits: int, out: Any, start: int, stop: int) -> None:
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


def group_dequantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``reference.group_dequantize``."""
    num_groups = scales.numel()
    if out is None:
        out = empty((num_groups * group,), torch.float32, data.device)
    rows = data.numpy().reshape(num_groups, group * nbits // 8)
    arguments = (rows, scales.numpy(), nbits, out.numpy().reshape(num_groups, group))
    parts = threads.split(num_groups, 4 * group)
    threads.run(_dequantize_kernel, [(*arguments, s, e) for s, e in parts])
    return out
