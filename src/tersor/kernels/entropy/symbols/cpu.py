"""Codes to symbols and back in numba, alone and fused with quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tersor.kernels.entropy.symbols.alphabet import (
    NARROW,
    WIDE,
    Symbols,
    Window,
    narrow_is_enough,
    whole_window,
    window_around,
)
from tersor.kernels.quantize.cpu.quantize import (
    bounded_dequantize,
    bounded_quantize,
    quantize_tile,
    quantizer_arguments,
)
from tersor.kernels.quantize.grid import TILE, Grid
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit


@njit(nogil=True, cache=True)
def _extent_kernel(codes: Any, start: int, stop: int) -> Any:
    part = codes[start:stop]
    smallest, largest, total = np.int32(2147483647), np.int32(-2147483648), np.int64(0)
    for i in range(part.size):
        smallest = min(smallest, part[i])
        largest = max(largest, part[i])
        total += part[i]
    return smallest, largest, total


@njit(nogil=True, cache=True)
def _count_outside_kernel(codes: Any, low: int, size: int, start: int, stop: int) -> Any:
    count = np.int64(0)
    part = codes[start:stop]
    for i in range(part.size):
        relative = np.int64(part[i]) - low
        count += (relative < 0) | (relative >= size)
    return count


@njit(nogil=True, cache=True)
def _map_kernel(codes: Any, low: int, size: int, symbols: Any, start: int, stop: int) -> None:
    source, target = codes[start:stop], symbols[start:stop]
    for i in range(source.size):
        relative = np.int64(source[i]) - low
        inside = (relative >= 0) & (relative < size)
        target[i] = symbols.dtype.type(relative if inside else size)


def _choose_window(codes: Any, parts: Any) -> Window:
    if codes.size == 0:
        return Window(0, 1, escapes=False)
    extents = threads.run(_extent_kernel, [(codes, s, e) for s, e in parts])
    smallest = int(min(extent[0] for extent in extents))
    largest = int(max(extent[1] for extent in extents))
    whole = whole_window(smallest, largest)
    if whole is not None and whole.size <= NARROW:
        return whole
    mean = sum(int(extent[2]) for extent in extents) // codes.size
    narrow = window_around(mean, smallest, largest, NARROW)
    outside = threads.run(
        _count_outside_kernel, [(codes, narrow.low, narrow.size, s, e) for s, e in parts]
    )
    if narrow_is_enough(sum(outside), codes.size):
        return narrow
    return whole or window_around(mean, smallest, largest, WIDE)


def map_symbols(codes: torch.Tensor, window: Window | None = None) -> Symbols:
    """See ``reference.map_symbols``."""
    values = codes.numpy()
    parts = threads.split(values.size, 4)
    window = window or _choose_window(values, parts)
    symbols = np.empty(values.size, dtype=np.uint8 if window.alphabet <= NARROW else np.int16)
    threads.run(_map_kernel, [(values, window.low, window.size, symbols, s, e) for s, e in parts])
    positions = np.flatnonzero(symbols == window.size) if window.escapes else np.empty(0, np.int64)
    return Symbols(
        torch.from_numpy(symbols),
        window.low,
        window.alphabet,
        torch.from_numpy(positions),
        torch.from_numpy(values[positions]),
    )


@njit(nogil=True, cache=True)
def _unmap_kernel(symbols: Any, low: Any, codes: Any, start: int, stop: int) -> None:
    source, target = symbols[start:stop], codes[start:stop]
    for i in range(source.size):
        target[i] = np.int32(np.int32(source[i]) + low)


def unmap_symbols(symbols: torch.Tensor, mapped: Symbols) -> torch.Tensor:
    """See ``reference.unmap_symbols``."""
    codes = np.empty(symbols.numel(), dtype=np.int32)
    values, low = symbols.numpy(), np.int32(mapped.low)
    parts = threads.split(codes.size, 4)
    threads.run(_unmap_kernel, [(values, low, codes, s, e) for s, e in parts])
    codes[mapped.escape_positions.numpy()] = mapped.escape_codes.numpy()
    return torch.from_numpy(codes)


@njit(nogil=True, cache=True)
def _quantize_symbols_kernel(
    values: Any,
    inverse: Any,
    step: Any,
    bound: Any,
    radius: Any,
    narrow: int,
    low: Any,
    symbols: Any,
    start: int,
    stop: int,
) -> int:
    """Quantize tiles ``[start, stop)`` to symbols; return 1 at the first tile with an outlier, else 0."""
    codes = np.empty(TILE, dtype=np.int32)
    for tile in range(start, stop):
        part = values[tile * TILE : min(tile * TILE + TILE, values.size)]
        if quantize_tile(part, inverse, step, bound, radius, narrow, codes) > 0:
            return 1
        target = symbols[tile * TILE : tile * TILE + part.size]
        for i in range(part.size):
            target[i] = symbols.dtype.type(codes[i] - low)
    return 0


def quantize_symbols(
    x: torch.Tensor, grid: Grid, low: float, high: float
) -> tuple[Symbols, torch.Tensor]:
    """See ``compose.quantize_symbols``.

    Rounding is monotonic, so the codes of the ends of the range are the extreme codes. Without
    outliers the alphabet is therefore known in advance, and the codes need not be stored.
    """
    arguments = quantizer_arguments(x, grid)
    compute = type(arguments[1])
    if low <= high and max(abs(low), abs(high)) * grid.inverse < grid.radius:
        smallest = int(np.rint(compute(low) * compute(grid.inverse)))
        largest = int(np.rint(compute(high) * compute(grid.inverse)))
        if largest - smallest < NARROW:
            symbols = np.empty(x.numel(), dtype=np.uint8)
            parts = threads.split(-(-x.numel() // TILE), 4 * TILE)
            met_outlier = threads.run(
                _quantize_symbols_kernel,
                [(*arguments, np.int32(smallest), symbols, s, e) for s, e in parts],
            )
            if not any(met_outlier):
                none = torch.empty(0, dtype=torch.int64, device="cpu")
                alphabet = largest - smallest + 1
                mapped = Symbols(
                    torch.from_numpy(symbols), smallest, alphabet, none, none.to(torch.int32)
                )
                return mapped, none
    codes, positions = bounded_quantize(x, grid)
    return map_symbols(codes), positions


@njit(nogil=True, cache=True)
def _dequantize_symbols_kernel(
    symbols: Any, low: Any, step: Any, out: Any, start: int, stop: int
) -> None:
    source, target = symbols[start:stop], out[start:stop]
    for i in range(source.size):
        target[i] = out.dtype.type(np.int32(np.int32(source[i]) + low)) * step


def dequantize_symbols(
    symbols: torch.Tensor, other: Symbols, step: float, out: torch.Tensor
) -> None:
    """See ``compose.dequantize_symbols``."""
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    if out.dtype != wide or other.escape_positions.numel():
        bounded_dequantize(unmap_symbols(symbols, other), step, out)
        return
    values = out.view(-1).numpy()
    arguments = (symbols.numpy(), np.int32(other.low), values.dtype.type(step), values)
    parts = threads.split(values.size, 5)
    threads.run(_dequantize_symbols_kernel, [(*arguments, s, e) for s, e in parts])
