"""Range-quantized groups in numba. A group goes through a float32 stage, whose integer keys sort like the values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.kernels.group.cpu.fields import pack_fields, read_group
from tersor.kernels.group.cpu.groups import HASH_STEP, uniform
from tersor.kernels.group.cpu.values import F16, array_of, write_stage
from tersor.kernels.group.ranges.layout import (
    LARGEST,
    NAN_RANGE,
    SMALLEST_RANGE,
    TOP,
    payload_nbytes,
)
from tersor.kernels.group.reference import nan_of
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit
from tersor.raw_bytes import empty

_BELOW_SIGN: Final = 0x7FFFFFFF
_LARGEST_BITS: Final = int(np.float32(LARGEST).view(np.int32))


@njit(nogil=True, cache=True, inline="always")
def _flipped(number: Any) -> Any:
    """Convert float32 bits to a key that sorts like the value, or back: invert the lower 31 bits of negative numbers."""
    return np.int32(number ^ np.int32(np.int32(number >> np.int32(31)) & np.int32(_BELOW_SIGN)))


@njit(nogil=True, cache=True)
def _limits(values: Any, bits: Any) -> tuple[Any, Any, Any, Any]:
    """Return the stored minimum and range of values, the minimum in float32, and the reciprocal of a level.

    ``bits`` is the integer view of the values.
    """
    least, greatest = _flipped(bits[0]), _flipped(bits[0])
    for i in range(bits.size):
        key = _flipped(bits[i])
        least, greatest = min(least, key), max(greatest, key)
    lowest = np.int32(_flipped(least)).view(np.float32) + np.float32(0)
    image = np.int32(np.float32(lowest).view(np.int32))
    # round towards minus infinity: the bits of a negative number grow with its magnitude
    rounded = np.int32(image + np.int32(np.int32(image >> np.int32(31)) & np.int32(0xFFFF)))
    minimum = np.int32(rounded >> np.int32(16))
    low = np.int32(minimum << np.int32(16)).view(np.float32)
    span = np.float32(np.int32(_flipped(greatest)).view(np.float32) - low)
    image = np.int32(np.float32(max(span, np.float32(0))).view(np.int32))
    stored = np.int32(np.int32(image + np.int32(0xFFFF)) >> np.int32(16))
    width = np.int32(stored << np.int32(16)).view(np.float32)
    if width < np.float32(SMALLEST_RANGE):
        return minimum, np.int32(0), low, np.float32(0)
    return minimum, stored, low, np.float32(np.float32(TOP) / width)


@njit(nogil=True, cache=True)
def _put_fields(values: Any, low: Any, inverse: Any, seed: Any, at: int, fields: Any) -> None:
    """Write the fields of values, the first of which has position ``at`` for stochastic rounding."""
    is_stochastic, start, high = seed
    if not is_stochastic:
        for i in range(values.size):
            code = np.rint(np.float32(np.float32(values[i] - low) * inverse))
            fields[i] = np.uint8(np.int32(min(max(code, np.float32(0)), np.float32(TOP))))
        return
    step = np.uint32(HASH_STEP)
    first = np.uint32(np.uint32(at) * step + start)
    for i in range(values.size):
        h = np.uint32(first + np.uint32(np.uint32(i) * step))
        scaled = np.float32(np.float32(values[i] - low) * inverse)
        code = np.floor(scaled + uniform(h, high))
        fields[i] = np.uint8(np.int32(min(max(code, np.float32(0)), np.float32(TOP))))


@njit(nogil=True, cache=True)
def _quantize_kernel(
    x: Any, kind: int, seed: Any, limits: Any, data: Any, group: int, start: int, stop: int
) -> None:
    """Quantize groups ``[start, stop)``."""
    stage, fields = np.empty(group, dtype=np.float32), np.empty(group, dtype=np.uint8)
    bits, largest = stage.view(np.int32), np.float32(LARGEST)
    for g in range(start, stop):
        at = g * group
        count = min(group, x.size - at)
        is_finite, peak = read_group(x, kind, at, stage)
        if peak > np.int32(_LARGEST_BITS):
            for i in range(group):
                stage[i] = min(max(stage[i], -largest), largest)
        minimum, width, low, inverse = _limits(stage[:count], bits[:count])
        limits[0, g] = np.uint16(minimum if is_finite else np.int32(0))
        limits[1, g] = np.uint16(width if is_finite else np.int32(NAN_RANGE))
        if is_finite:
            _put_fields(stage[:count], low, inverse, seed, at, fields)
            fields[count:] = np.uint8(0)
        else:
            fields[:] = np.uint8(0)
        pack_fields(fields, 2, data[g])


def range_quantize(
    x: torch.Tensor, group: int, seed: int | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``reference.range_quantize``."""
    out = empty((payload_nbytes(x.numel(), group),), torch.uint8, x.device) if out is None else out
    num_groups = ceil_div(x.numel(), group)
    if num_groups == 0:
        return out
    limits, data = (
        part.numpy() for part in out.split_with_sizes((4 * num_groups, num_groups * group // 4))
    )
    halves = (np.uint32((seed or 0) >> shift & 0xFFFFFFFF) for shift in (0, 32))
    arguments = (
        *array_of(x), (seed is not None, *halves), limits.view(np.uint16).reshape(2, num_groups),
        data.reshape(num_groups, group // 4), group,
    )  # fmt: skip
    parts = threads.split(num_groups, x.element_size() * group)
    threads.run(_quantize_kernel, [(*arguments, s, e) for s, e in parts])
    return out


@njit(nogil=True, cache=True)
def _dequantize_kernel(
    limits: Any, data: Any, group: int, out: Any, kind: int, nan: Any, start: int, stop: int
) -> None:
    """Decode groups ``[start, stop)``."""
    stage, table = np.empty(group, dtype=np.float32), np.empty(TOP + 1, dtype=np.float32)
    most = np.float32(65504.0)
    for g in range(start, stop):
        low = np.int32(np.int32(limits[0, g]) << np.int32(16)).view(np.float32)
        width = np.int32(np.int32(limits[1, g]) << np.int32(16)).view(np.float32)
        level = np.float32(width / np.float32(TOP))
        for code in range(TOP + 1):
            value = np.float32(np.float32(np.float32(code) * level) + low)
            if kind == F16 and not np.isnan(value):
                value = min(max(value, -most), most)
            table[code] = value
        packed = data[g]
        for i in range(packed.size):
            for j in range(4):
                stage[4 * i + j] = table[(packed[i] >> np.uint8(2 * j)) & np.uint8(TOP)]
        write_stage(stage, out, kind, nan, False, g * group)


def range_dequantize(payload: torch.Tensor, group: int, out: torch.Tensor) -> None:
    """See ``reference.range_dequantize``."""
    num_groups = ceil_div(out.numel(), group)
    if num_groups == 0:
        return
    limits, data = (
        part.numpy() for part in payload.split_with_sizes((4 * num_groups, num_groups * group // 4))
    )
    target, kind = array_of(out)
    arguments = (
        limits.view(np.uint16).reshape(2, num_groups), data.reshape(num_groups, group // 4), group,
        target, kind, array_of(nan_of(out.dtype))[0][0],
    )  # fmt: skip
    parts = threads.split(num_groups, out.element_size() * group)
    threads.run(_dequantize_kernel, [(*arguments, s, e) for s, e in parts])
