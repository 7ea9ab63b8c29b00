"""Masked groups in numba. A group goes through a float32 stage, whose integer view serves to find the largest value."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.kernels.group.cpu.fields import pack_fields, read_group
from tersor.kernels.group.cpu.values import F16, array_of, write_stage
from tersor.kernels.group.masks.layout import (
    LARGEST,
    NAN_SCALE,
    parts_nbytes,
    top_of,
)
from tersor.kernels.group.reference import nan_of
from tersor.kernels.group.rms.layout import FRACTION_BITS, GROUP, NUM_SAMPLED, SMALLEST_SCALE
from tersor.kernels.group.rms.reference import fractions_of
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit
from tersor.raw_bytes import empty

_LARGEST_BITS: Final = int(np.float32(LARGEST).view(np.int32))
_SMALLEST_BITS: Final = int(np.float32(SMALLEST_SCALE).view(np.int32))
_MAGNITUDE, _INFINITE, _SIGN = 0x7FFFFFFF, 0x7F800000, -0x80000000


@njit(nogil=True, cache=True)
def _read(x: Any, kind: int, start: int, stage: Any, bits: Any) -> bool:
    """Fill ``stage`` as ``reference.in_range`` does; return whether all values are finite.

    ``bits`` is the integer view of ``stage``.
    """
    is_finite, peak = read_group(x, kind, start, stage)
    if peak > np.int32(_LARGEST_BITS):
        for i in range(bits.size):
            magnitude = np.int32(bits[i] & np.int32(_MAGNITUDE))
            held = min(magnitude, np.int32(_LARGEST_BITS))
            held = np.int32(held | np.int32(bits[i] & np.int32(_SIGN)))
            bits[i] = np.int32(0) if magnitude > np.int32(_INFINITE) else held
    if x.itemsize == 8:
        for i in range(min(bits.size, x.size - start)):
            is_lost = (stage[i] == np.float32(0)) & (abs(x[start + i]) > 0)
            bits[i] = np.int32(bits[i] | np.int32(is_lost))
    return is_finite


@njit(nogil=True, cache=True)
def _scale(bits: Any, nbits: int) -> tuple[Any, Any, Any]:
    """Return the stored scale of a group, its reciprocal, and the largest code."""
    plus, minus = np.int32(_SIGN), np.int32(_SIGN)
    for i in range(bits.size):
        plus = max(plus, bits[i])
        minus = max(minus, np.int32(bits[i] ^ np.int32(_SIGN)))
    is_signed = minus > 0
    top = np.int32((1 << (nbits - is_signed)) - 1)
    wanted = np.float32(np.int32(max(plus, minus, np.int32(0))).view(np.float32) / np.float32(top))
    image = max(np.int32(np.float32(wanted).view(np.int32)), np.int32(_SMALLEST_BITS))
    stored = np.int32(np.int32(image + np.int32(0xFFFF)) >> np.int32(16))
    scale = np.int32(stored << np.int32(16)).view(np.float32)
    marked = np.int32(stored | np.int32(np.int32(is_signed) << np.int32(15)))
    return marked, np.float32(np.float32(1) / scale), top


@njit(nogil=True, cache=True)
def _put_fields(values: Any, bits: Any, inverse: Any, top: Any, bias: Any, fields: Any) -> None:
    for i in range(values.size):
        magnitude = np.int32(bits[i] & np.int32(_MAGNITUDE))
        code = np.int32(np.ceil(np.float32(abs(values[i]) * inverse)))
        code = min(max(code, min(magnitude, np.int32(1))), top)
        sign = np.int32(bits[i] >> np.int32(31))
        fields[i] = np.uint8(np.int32(np.int32(code ^ sign) - sign) + bias)


@njit(nogil=True, cache=True)
def _quantize_kernel(
    x: Any, kind: int, nbits: int, scales: Any, data: Any, start: int, stop: int
) -> None:
    """Quantize groups ``[start, stop)``."""
    stage, fields = np.empty(GROUP, dtype=np.float32), np.empty(GROUP, dtype=np.uint8)
    bits = stage.view(np.int32)
    for g in range(start, stop):
        is_finite = _read(x, kind, g * GROUP, stage, bits)
        marked, inverse, top = _scale(bits, nbits)
        scales[g] = np.uint16(marked if is_finite else np.int32(NAN_SCALE))
        bias = np.int32((marked >> np.int32(15)) << np.int32(nbits - 1))
        _put_fields(stage, bits, inverse, top, bias, fields)
        pack_fields(fields, nbits, data[g])


@njit(nogil=True, cache=True)
def _sample_kernel(x: Any, kind: int, nbits: int, groups: Any, sums: Any, counts: Any) -> None:
    """Sum the magnitudes in each bin of some groups, in units of 1/65536 scale, and count them."""
    stage, fields = np.empty(GROUP, dtype=np.float32), np.empty(GROUP, dtype=np.uint8)
    bits = stage.view(np.int32)
    for g in groups:
        _read(x, kind, g * GROUP, stage, bits)
        _, inverse, top = _scale(bits, nbits)
        bias = np.int32(1 << nbits)
        _put_fields(stage, bits, inverse, top, bias, fields)
        for i in range(GROUP):
            code = abs(np.int32(fields[i]) - bias)
            if code > 0:
                parts = np.float32(abs(stage[i]) * inverse) * np.float32(2.0**FRACTION_BITS)
                sums[code - 1] += np.int64(parts)
                counts[code - 1] += 1


def mask_quantize(x: torch.Tensor, nbits: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """See ``reference.mask_quantize``."""
    nbytes = parts_nbytes(x.numel(), nbits)
    out = empty((sum(nbytes),), torch.uint8, x.device) if out is None else out
    num_groups, top = ceil_div(x.numel(), GROUP), top_of(nbits, is_signed=False)
    fractions, scales, data = out.split_with_sizes(nbytes)
    values, kind = array_of(x)
    num_sampled = min(NUM_SAMPLED, num_groups)
    groups = np.arange(num_sampled) * num_groups // max(1, num_sampled)
    sums, counts = np.zeros(top, dtype=np.int64), np.zeros(top, dtype=np.int64)
    _sample_kernel(values, kind, nbits, groups, sums, counts)
    head = fractions.view(torch.int16)
    head[:top] = fractions_of(torch.from_numpy(sums), torch.from_numpy(counts))
    head[top:] = 0
    scales[2 * num_groups :] = 0
    targets = scales.numpy().view(np.uint16), data.numpy().reshape(num_groups, GROUP * nbits // 8)
    parts = threads.split(num_groups, x.element_size() * GROUP)
    threads.run(_quantize_kernel, [(values, kind, nbits, *targets, s, e) for s, e in parts])
    return out


@njit(nogil=True, cache=True)
def _put_levels(levels: Any, stored: Any, nbits: int, kind: int, table: Any) -> None:
    """Write to ``table`` what each field decodes to in a group with this stored scale, float32."""
    factor = np.int32(np.int32(stored & 0x7FFF) << np.int32(16)).view(np.float32)
    bias = (np.int32(stored) >> 15) << (nbits - 1)
    for field in range(table.size):
        code = field - bias
        value = np.float32(levels[abs(code)] * factor)
        if kind == F16 and value > np.float32(0):
            value = min(max(value, np.float32(2.0**-24)), np.float32(65504.0))
        table[field] = -value if code < 0 else value


@njit(nogil=True, cache=True)
def _dequantize_kernel(
    levels: Any, scales: Any, data: Any, nbits: int, out: Any, kind: int, nan: Any, start: int,
    stop: int,
) -> None:  # fmt: skip
    """Decode groups ``[start, stop)``."""
    stage, table = np.empty(GROUP, dtype=np.float32), np.empty(1 << nbits, dtype=np.float32)
    for g in range(start, stop):
        _put_levels(levels, scales[g], nbits, kind, table)
        packed = data[g]
        if nbits == 4:
            for i in range(packed.size):
                stage[2 * i] = table[packed[i] & np.uint8(15)]
                stage[2 * i + 1] = table[packed[i] >> np.uint8(4)]
        else:
            for i in range(packed.size):
                for j in range(4):
                    stage[4 * i + j] = table[(packed[i] >> np.uint8(2 * j)) & np.uint8(3)]
        write_stage(stage, out, kind, nan, False, g * GROUP)


def mask_dequantize(payload: torch.Tensor, nbits: int, out: torch.Tensor) -> None:
    """See ``reference.mask_dequantize``."""
    num_groups, top = ceil_div(out.numel(), GROUP), top_of(nbits, is_signed=False)
    fractions, scales, data = payload.split_with_sizes(parts_nbytes(out.numel(), nbits))
    below = np.arange(top, dtype=np.int64) << FRACTION_BITS
    parts = below + fractions.numpy().view(np.uint16)[:top] + 1
    levels = np.zeros(top + 1, dtype=np.float32)
    levels[1:] = parts.astype(np.float32) * np.float32(2.0**-FRACTION_BITS)
    target, kind = array_of(out)
    nan = array_of(nan_of(out.dtype))[0][0]
    arguments = (
        levels, scales.numpy().view(np.uint16), data.numpy().reshape(num_groups, GROUP * nbits // 8),
        nbits, target, kind, nan,
    )  # fmt: skip
    splits = threads.split(num_groups, out.element_size() * GROUP)
    threads.run(_dequantize_kernel, [(*arguments, s, e) for s, e in splits])
