"""Quantization of groups scaled by their root mean square, in numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.kernels.group.rms.layout import (
    FRACTION_BITS,
    GROUP,
    LARGEST_MAGNITUDE,
    SCALE_SHIFT,
    SMALLEST_SCALE,
    ZEROS_PER_VALUE,
    RmsCodes,
    f32_step,
    sampled_groups,
    top_of,
)
from tersor.kernels.group.rms.reference import (
    ABOVE_HALF,
    LEAST_EXPONENT,
    as_scalable,
    fractions_of,
    in_f16,
)
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit

_LIMIT = int(np.float32(LARGEST_MAGNITUDE).view(np.int32))
_MAGNITUDE = 0x7FFFFFFF


@njit(nogil=True, cache=True)
def _scale(values: Any, bits: Any, zeros: bool) -> Any:
    """Return the scale of a group and its number of outliers; ``bits`` is the integer view of ``values``."""
    peak, num_outliers, num_counted = np.int32(0), np.int32(0), np.int32(0)
    for i in range(bits.size):
        magnitude = np.int32(bits[i] & np.int32(_MAGNITUDE))
        is_outlier = magnitude >= np.int32(_LIMIT)
        num_outliers += np.int32(is_outlier)
        num_counted += np.int32((magnitude > 0) & ~is_outlier)
        peak = max(peak, np.int32(0) if is_outlier else magnitude)
    exponent = max(np.int32(peak >> np.int32(23)), np.int32(LEAST_EXPONENT))
    factor = np.int32(np.int32(np.int32(264) - exponent) << np.int32(23)).view(np.float32)
    total = np.int32(0)
    for i in range(bits.size):
        held = abs(values[i])
        held = held if held < np.float32(LARGEST_MAGNITUDE) else np.float32(0)
        whole = np.int32(np.int32(np.rint(held * factor)) + np.int32(1))
        total += np.int32(whole * whole)
    # the last group may be short: each missing place counts as one
    total += np.int32(GROUP - bits.size)
    count = np.float32(max(1, num_counted if zeros else bits.size))
    root = np.sqrt(np.float32(np.float32(total) / count))
    image = np.int32(np.float32(root).view(np.int32) + np.int32(0x7FFF))
    rounded = np.int32(image & np.int32(-0x8000)).view(np.float32)
    unit = np.int32(np.int32(exponent - np.int32(10)) << np.int32(23)).view(np.float32)
    return max(np.float32(rounded * unit), np.float32(SMALLEST_SCALE)), num_outliers


@njit(nogil=True, cache=True)
def _put_codes(values: Any, inverse: Any, top: Any, zeros: bool, symbols: Any) -> None:
    """Write the symbols of a group; ``top`` is a float32."""
    limit = np.float32(LARGEST_MAGNITUDE)
    if zeros:
        for i in range(values.size):
            value = values[i]
            code = np.rint(np.float32(abs(value) * inverse) + np.float32(ABOVE_HALF))
            code = code if value > np.float32(0) else -code
            is_coded = (abs(value) < limit) & (value != np.float32(0))
            symbols[i] = np.uint8(np.int32((code if is_coded else np.float32(0)) + top))
    else:
        for i in range(values.size):
            value = values[i]
            code = np.rint((value if abs(value) < limit else np.float32(0)) * inverse)
            symbols[i] = np.uint8(np.int32(code + top))


@njit(nogil=True, cache=True)
def _quantize_kernel(
    values: Any, step: Any, top: Any, zeros: bool, symbols: Any, scales: Any, start: int, stop: int
) -> int:
    """Quantize groups ``[start, stop)``; return the number of outliers."""
    bits = values.view(np.int32)
    num_outliers = 0
    for g in range(start, stop):
        first, last = g * GROUP, min((g + 1) * GROUP, values.size)
        scale, found = _scale(values[first:last], bits[first:last], zeros)
        num_outliers += found
        scales[g] = np.uint16(np.float32(scale).view(np.int32) >> np.int32(SCALE_SHIFT))
        inverse = np.float32(np.float32(1) / np.float32(scale * step))
        _put_codes(values[first:last], inverse, top, zeros, symbols[first:last])
    return num_outliers


@njit(nogil=True, cache=True)
def _sample_kernel(
    values: Any, groups: Any, step: Any, top: Any, zeros: bool, counts: Any, sums: Any
) -> None:
    """Count the symbols of groups, and sum the magnitudes in each bin in units of 1/65536 step."""
    bits = values.view(np.int32)
    symbols = np.empty(GROUP, dtype=np.uint8)
    for g in groups:
        own = values[g * GROUP : min((g + 1) * GROUP, values.size)]
        scale, _ = _scale(own, bits[g * GROUP : g * GROUP + own.size], zeros)
        inverse = np.float32(np.float32(1) / np.float32(scale * step))
        _put_codes(own, inverse, top, zeros, symbols)
        for i in range(own.size):
            symbol = np.int64(symbols[i])
            counts[symbol] += 1
            code = abs(symbol - np.int64(top))
            if code > 0:
                parts = np.float32(abs(own[i]) * inverse) * np.float32(2.0**FRACTION_BITS)
                sums[code - 1] += np.int64(parts)


def rms_quantize(x: torch.Tensor, step: float, zeros: bool | None = None) -> RmsCodes:
    """See ``reference.rms_quantize``."""
    scalable = as_scalable(x)
    values, top = scalable.numpy(), top_of(step)
    num_groups = ceil_div(values.size, GROUP)
    groups = np.array(sampled_groups(num_groups))
    if zeros is None:
        zeros = _has_zeros(values, groups)
    counts, sums = np.zeros(2 * top + 1, dtype=np.int64), np.zeros(top, dtype=np.int64)
    options = np.float32(f32_step(step)), np.float32(top), zeros
    _sample_kernel(values, groups, *options, counts, sums)
    symbols = np.empty(values.size, dtype=np.uint8)
    scales = np.empty(num_groups, dtype=np.uint16)
    parts = threads.split(num_groups, 4 * GROUP)
    arguments = (values, *options, symbols, scales)
    num_outliers = sum(threads.run(_quantize_kernel, [(*arguments, s, e) for s, e in parts]))
    fractions = torch.empty(0, dtype=torch.int16)
    if zeros:
        both = counts[top + 1 :] + counts[:top][::-1]
        fractions = fractions_of(torch.from_numpy(sums), torch.from_numpy(both))
    positions = torch.empty(0, dtype=torch.int64)
    if num_outliers:
        positions = torch.nonzero(~(scalable.abs() < LARGEST_MAGNITUDE)).view(-1)
    return RmsCodes(
        torch.from_numpy(symbols),
        torch.from_numpy(scales.view(np.int16)),
        fractions,
        torch.from_numpy(counts),
        positions,
    )


def _has_zeros(values: Any, groups: Any) -> bool:
    sampled = [values[g * GROUP : (g + 1) * GROUP] for g in groups]
    num_zeros = sum(int(part.size - np.count_nonzero(part)) for part in sampled)
    return num_zeros * ZEROS_PER_VALUE > sum(part.size for part in sampled)


@njit(nogil=True, cache=True)
def _dequantize_kernel(
    symbols: Any, scales: Any, levels: Any, out: Any, start: int, stop: int
) -> None:
    """Write the values of groups ``[start, stop)``."""
    for g in range(start, stop):
        first, last = g * GROUP, min((g + 1) * GROUP, out.size)
        scale = np.int32(np.int32(scales[g]) << np.int32(SCALE_SHIFT)).view(np.float32)
        own, target = symbols[first:last], out[first:last]
        for i in range(own.size):
            target[i] = levels[own[i]] * scale


def rms_dequantize(
    symbols: torch.Tensor, scales: torch.Tensor, levels: torch.Tensor, out: torch.Tensor
) -> None:
    """See ``reference.rms_dequantize``."""
    is_own = out.dtype == torch.float32
    target = out.view(-1) if is_own else torch.empty(symbols.numel(), dtype=torch.float32)
    arguments = (symbols.numpy(), scales.numpy().view(np.uint16), levels.numpy(), target.numpy())
    parts = threads.split(scales.numel(), 4 * GROUP)
    threads.run(_dequantize_kernel, [(*arguments, s, e) for s, e in parts])
    if not is_own:
        out.view(-1).copy_(in_f16(target) if out.dtype == torch.float16 else target)
