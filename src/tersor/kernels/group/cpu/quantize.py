"""Group quantization in numba, alone and fused with the Hadamard transform, sums and a base.

What is fused goes through a stage: a few groups of float32, small enough to stay in a cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from tersor.kernels.group.cpu.values import array_of, read_stage, write_stage
from tersor.kernels.group.layout import outputs
from tersor.kernels.group.reference import SMALLEST_ABSMAX, largest_scale, nan_of
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import array_at, njit
from tersor.kernels.transform.cpu import hadamard_rows
from tersor.kernels.transform.reference import ORDER
from tersor.raw_bytes import empty

_SMALLEST_BITS = int(np.float32(SMALLEST_ABSMAX).view(np.int32))
_STAGE_VALUES = 4096


@njit(nogil=True, cache=True, inline="always")
def _uniform(position: int, low: Any, high: Any) -> Any:
    h = np.uint32(np.uint32(position) * np.uint32(0x9E3779B1) + low)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16)) ^ high) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    return np.float32(np.uint32(h >> np.uint32(8))) * np.float32(2.0**-24)


@njit(nogil=True, cache=True)
def _group_fields(values: Any, inverse: Any, top: Any, rounding: Any, at: int, fields: Any) -> None:
    """Write one group's fields as bytes; 0 marks values that are not finite."""
    stochastic, low, high = rounding.stochastic, rounding.low, rounding.high
    bias = np.float32(top + np.float32(1))
    for i in range(values.size):
        finite = abs(values[i]) <= np.float32(3.4028235e38)
        scaled = (values[i] if finite else np.float32(0)) * inverse
        code = np.floor(scaled + _uniform(at + i, low, high)) if stochastic else np.rint(scaled)
        code = min(max(code, -top), top) + bias
        fields[i] = np.uint8(np.int32(code)) if finite else np.uint8(0)


class Rounding(NamedTuple):
    """How values become codes, as kernels take it."""

    nbits: int
    limit: Any
    stochastic: bool
    low: Any
    high: Any

    @classmethod
    def of(cls, nbits: int, seed: int | None) -> Rounding:
        """Take the arguments of ``reference.group_quantize``."""
        low, high = ((seed or 0) >> shift & 0xFFFFFFFF for shift in (0, 32))
        limit = np.float32(largest_scale(nbits))
        return cls(nbits, limit, seed is not None, np.uint32(low), np.uint32(high))


@njit(nogil=True, cache=True)
def _quantize_kernel(
    values: Any, bits: Any, at: int, rounding: Any, scales: Any, data: Any, start: int, stop: int
) -> None:
    """Quantize groups ``[start, stop)`` of ``values``, the first of which is value ``at`` of all.

    ``bits`` is the integer image of ``values``.
    """
    nbits = rounding.nbits
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
            scale = min(np.float32(absmax / top), rounding.limit)
        scales[g] = scale
        target = fields if nbits == 4 else data[g]
        _group_fields(values[g], inverse, top, rounding, at + g * group, target)
        if nbits == 4:
            row = data[g]
            for i in range(half):
                row[i] = np.uint8(fields[i] | np.uint8(fields[half + i] << np.uint8(4)))


@njit(nogil=True, cache=True)
def _staged_quantize_kernel(
    source: Any,
    base: Any,
    kind: int,
    subtract: bool,
    hadamard: bool,
    group: int,
    rounding: Any,
    scales: Any,
    data: Any,
    start: int,
    stop: int,
) -> None:
    """Quantize groups ``[start, stop)`` of values of any float dtype."""
    num_staged = max(1, _STAGE_VALUES // group)
    stage = np.empty((num_staged, group), dtype=np.float32)
    flat, rows = stage.reshape(-1), stage.reshape(-1, ORDER if hadamard else group)
    for first in range(start, stop, num_staged):
        count = min(num_staged, stop - first)
        read_stage(source, base, kind, subtract, first * group, flat[: count * group])
        if hadamard:
            hadamard_rows(rows, np.float32(1), rows, 0, count * group // ORDER)
        _quantize_kernel(
            stage,
            stage.view(np.int32),
            first * group,
            rounding,
            scales[first:],
            data[first:],
            0,
            count,
        )


def group_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    hadamard: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    base: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.group_quantize``."""
    num_groups = -(-x.numel() // group)
    scales, data = outputs(num_groups, nbits, group, out, x.device)
    source, kind = array_of(x)
    targets = scales.numpy(), data.numpy().reshape(num_groups, group * nbits // 8)
    rounding = Rounding.of(nbits, seed)
    parts = threads.split(num_groups, x.element_size() * group)
    if x.dtype == torch.float32 and x.numel() % group == 0 and base is None and not hadamard:
        rows = source.reshape(num_groups, group)
        arguments = (rows, rows.view(np.int32), 0, rounding, *targets)
        threads.run(_quantize_kernel, [(*arguments, s, e) for s, e in parts])
        return scales, data
    subtrahend = source if base is None else array_of(base.view(x.shape))[0]
    staged = (source, subtrahend, kind, base is not None, hadamard, group, rounding, *targets)
    threads.run(_staged_quantize_kernel, [(*staged, s, e) for s, e in parts])
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


@njit(nogil=True, cache=True)
def _sum_senders(
    data_addresses: Any, scale_addresses: Any, nbits: int, first: int, stage: Any, addend: Any
) -> None:
    """Fill ``stage`` with groups ``first`` and on, summed over senders whose bytes lie at the addresses."""
    count, group = stage.shape
    row_nbytes = group * nbits // 8
    octets, floats = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.float32)
    for sender in range(data_addresses.size):
        address = data_addresses[sender] + np.uint64(first * row_nbytes)
        data = array_at(address, count * row_nbytes, octets).reshape(count, row_nbytes)
        scales = array_at(scale_addresses[sender] + np.uint64(4 * first), count, floats)
        _dequantize_kernel(data, scales, nbits, stage if sender == 0 else addend, 0, count)
        if sender != 0:
            for g in range(count):
                stage[g] += addend[g]


@njit(nogil=True, cache=True)
def _staged_dequantize_kernel(
    data_addresses: Any,
    scale_addresses: Any,
    nbits: int,
    group: int,
    hadamard: bool,
    out: Any,
    kind: int,
    nan: Any,
    add: bool,
    start: int,
    stop: int,
) -> None:
    """Decode the sums of groups ``[start, stop)`` to values of any float dtype."""
    num_staged = max(1, _STAGE_VALUES // group)
    stage = np.empty((num_staged, group), dtype=np.float32)
    addend = np.empty((num_staged, group), dtype=np.float32)
    flat, rows = stage.reshape(-1), stage.reshape(-1, ORDER if hadamard else group)
    for first in range(start, stop, num_staged):
        count = min(num_staged, stop - first)
        _sum_senders(data_addresses, scale_addresses, nbits, first, stage[:count], addend)
        if hadamard:
            hadamard_rows(rows, np.float32(1.0 / ORDER), rows, 0, count * group // ORDER)
        write_stage(flat[: count * group], out, kind, nan, add, first * group)


@njit(nogil=True, cache=True)
def _staged_requantize_kernel(
    data_addresses: Any,
    scale_addresses: Any,
    nbits: int,
    group: int,
    rounding: Any,
    scales: Any,
    data: Any,
    start: int,
    stop: int,
) -> None:
    """Quantize the sums of groups ``[start, stop)`` while they are in a cache."""
    num_staged = max(1, _STAGE_VALUES // group)
    stage = np.empty((num_staged, group), dtype=np.float32)
    addend = np.empty((num_staged, group), dtype=np.float32)
    bits = stage.view(np.int32)
    for first in range(start, stop, num_staged):
        count = min(num_staged, stop - first)
        _sum_senders(data_addresses, scale_addresses, nbits, first, stage[:count], addend)
        targets = scales[first : first + count], data[first : first + count]
        _quantize_kernel(stage, bits, first * group, rounding, *targets, 0, count)


def _addresses(tensor: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
    """Return the rows, which may lie apart, each in one piece, and where they lie."""
    rows = [row.contiguous() for row in tensor]
    return rows, np.array([row.data_ptr() for row in rows], dtype=np.uint64)


def group_dequantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool = False,
    out: torch.Tensor | None = None,
    add: bool = False,
) -> torch.Tensor:
    """See ``reference.group_dequantize``."""
    scales = torch.atleast_2d(scales)
    num_senders, num_groups = scales.shape
    # a wrong size raises here, not beyond the end of the data
    data = torch.atleast_2d(data).view(num_senders, num_groups * group * nbits // 8)
    if out is None:
        out = empty((num_groups * group,), torch.float32, data.device)
    parts = threads.split(num_groups, 4 * group)
    is_plain = out.dtype == torch.float32 and not (hadamard or add)
    if is_plain and num_senders == 1 and out.numel() == num_groups * group:
        fields = data.numpy().reshape(num_groups, group * nbits // 8)
        target = out.view(num_groups, group).numpy()
        arguments = (fields, scales.view(-1).numpy(), nbits, target)
        threads.run(_dequantize_kernel, [(*arguments, s, e) for s, e in parts])
        return out
    (rows, starts), (scale_rows, scale_starts) = _addresses(data), _addresses(scales)
    nan = array_of(nan_of(out.dtype))[0][0]
    staged = (starts, scale_starts, nbits, group, hadamard, *array_of(out), nan, add)
    threads.run(_staged_dequantize_kernel, [(*staged, s, e) for s, e in parts])
    # until here: the kernel has addresses alone
    del rows, scale_rows
    return out


def group_dequantize_sum_quantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out_nbits: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``compose.group_dequantize_sum_quantize``."""
    num_senders, num_groups = scales.shape
    # a wrong size raises here, not beyond the end of the data
    data = data.view(num_senders, num_groups * group * nbits // 8)
    targets = outputs(num_groups, out_nbits, group, out, data.device)
    (rows, starts), (scale_rows, scale_starts) = _addresses(data), _addresses(scales)
    arrays = targets[0].numpy(), targets[1].numpy().reshape(num_groups, group * out_nbits // 8)
    staged = (starts, scale_starts, nbits, group, Rounding.of(out_nbits, seed), *arrays)
    parts = threads.split(num_groups, 4 * group * num_senders)
    threads.run(_staged_requantize_kernel, [(*staged, s, e) for s, e in parts])
    # until here: the kernel has addresses alone
    del rows, scale_rows
    return targets
