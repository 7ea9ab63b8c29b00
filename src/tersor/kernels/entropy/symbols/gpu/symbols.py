"""Codes to symbols and back in Triton, alone and fused with quantization."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.entropy.symbols.alphabet import (
    NARROW,
    WIDE,
    Symbols,
    Window,
    narrow_is_enough,
    whole_window,
    window_around,
)
from tersor.kernels.quantize.gpu.quantize import bounded_quantize
from tersor.kernels.quantize.gpu.values import (
    bits_of,
    from_bits,
    load_values,
    quantize_values,
    store_values,
)
from tersor.kernels.quantize.grid import Grid
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel

_TILE: Final = 4096
_PROGRAMS: Final = 1056
"""Programs that share the tiles of a reduction: eight for each of an H200's 132 multiprocessors."""
_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
_BIAS, _LARGEST_CODE = tl.constexpr(1 << 31), tl.constexpr((1 << 31) - 1)
_BELOW, _ABOVE, _SUM, _NARROW_OUTSIDE, _WIDE_OUTSIDE = (tl.constexpr(k) for k in range(5))
"""Indices into the int64 facts about the codes: the maximum of ``2**31 - 1 - code``, the maximum of
``code + 2**31`` (both can start from 0), the sum, and how many codes lie outside the narrow and the wide
window."""


@triton.jit
def _add_extent(smallest, largest, facts):
    """Fold the smallest and the largest code into the facts."""
    tl.atomic_max(facts + _BELOW, (-1 - smallest.to(tl.int64)) + _BIAS)
    tl.atomic_max(facts + _ABOVE, largest.to(tl.int64) + _BIAS)


@jit_kernel()
def _extent_kernel(codes, num_codes, facts, TILE: tl.constexpr):
    """Each program folds every ``num_programs``-th tile into the extreme codes and the sum."""
    first = tl.program_id(0).to(tl.int64) * TILE
    smallest = tl.full([TILE], _LARGEST_CODE, tl.int32)
    largest = tl.full([TILE], -_LARGEST_CODE - 1, tl.int32)
    total = tl.zeros([TILE], dtype=tl.int64)
    for start in range(first, num_codes, tl.num_programs(0) * TILE):
        position = start + tl.arange(0, TILE)
        inside = position < num_codes
        found = tl.load(codes + position, mask=inside, other=0)
        smallest = tl.where(inside, tl.minimum(smallest, found), smallest)
        largest = tl.where(inside, tl.maximum(largest, found), largest)
        total += found.to(tl.int64)
    _add_extent(tl.min(smallest, axis=0), tl.max(largest, axis=0), facts)
    tl.atomic_add(facts + _SUM, tl.sum(total, axis=0))


@triton.jit
def _lies_outside(codes, low, size):
    """Return which codes lie outside ``[low, low + size)``, a window that must not exceed int32."""
    return (codes - low).to(tl.uint32, bitcast=True) >= size.to(tl.uint32)


@triton.jit
def _low_around(mean, smallest, largest, SIZE: tl.constexpr):
    """Return the first code of ``alphabet.window_around``."""
    low = tl.minimum(tl.maximum(mean - SIZE // 2, smallest), largest - SIZE + 1)
    return low.to(tl.int32)


@jit_kernel()
def _outside_kernel(codes, num_codes, facts, TILE: tl.constexpr):
    """Each program counts codes outside the two windows around the mean, in its share of the tiles.

    If all codes fit a narrow alphabet, no count is needed and they are not read.
    """
    smallest = (-1 - tl.load(facts + _BELOW)) + _BIAS
    largest = tl.load(facts + _ABOVE) - _BIAS
    if largest - smallest >= _NARROW:
        total = tl.load(facts + _SUM)
        count = tl.full((), 0, tl.int64) + num_codes
        mean = total // count
        # floor division, whichever way the device's division rounds
        rest = total - mean * count
        mean = tl.where(rest < 0, mean - 1, tl.where(rest >= count, mean + 1, mean))
        narrow = _low_around(mean, smallest, largest, _NARROW - 1)
        wide = _low_around(mean, smallest, largest, _WIDE - 1)
        narrow_outside = tl.zeros([TILE], dtype=tl.int32)
        wide_outside = tl.zeros([TILE], dtype=tl.int32)
        first = tl.program_id(0).to(tl.int64) * TILE
        for start in range(first, num_codes, tl.num_programs(0) * TILE):
            position = start + tl.arange(0, TILE)
            inside = position < num_codes
            found = tl.load(codes + position, mask=inside, other=0)
            missed = inside & _lies_outside(found, narrow, narrow * 0 + (_NARROW - 1))
            narrow_outside += missed.to(tl.int32)
            missed = inside & _lies_outside(found, wide, wide * 0 + (_WIDE - 1))
            wide_outside += missed.to(tl.int32)
        tl.atomic_add(facts + _NARROW_OUTSIDE, tl.sum(narrow_outside.to(tl.int64), axis=0))
        tl.atomic_add(facts + _WIDE_OUTSIDE, tl.sum(wide_outside.to(tl.int64), axis=0))


def _choose_window(codes: torch.Tensor) -> tuple[Window, int]:
    """Return the window of ``reference.choose_window`` and the number of codes that escape it."""
    facts = torch.zeros(5, dtype=torch.int64, device=codes.device)
    num_programs = min(_PROGRAMS, ceil_div(codes.numel(), _TILE))
    _extent_kernel[(num_programs,)](codes, codes.numel(), facts, TILE=_TILE, num_warps=8)
    _outside_kernel[(num_programs,)](codes, codes.numel(), facts, TILE=_TILE, num_warps=8)
    below, above, total, narrow_outside, wide_outside = facts.tolist()
    smallest, largest = _BIAS.value - 1 - below, above - _BIAS.value
    whole = whole_window(smallest, largest)
    if whole is not None and whole.size <= NARROW:
        return whole, 0
    mean = total // codes.numel()
    if narrow_is_enough(narrow_outside, codes.numel()):
        return window_around(mean, smallest, largest, NARROW), narrow_outside
    if whole is not None:
        return whole, 0
    return window_around(mean, smallest, largest, WIDE), wide_outside


@jit_kernel(do_not_specialize=["low", "size"])
def _map_kernel(codes, num_codes, low, size, symbols, num_escapes, TILE: tl.constexpr):
    """One program maps a tile and counts its escapes."""
    tile = tl.program_id(0).to(tl.int64)
    position = tile * TILE + tl.arange(0, TILE)
    inside = position < num_codes
    found = tl.load(codes + position, mask=inside, other=0)
    escapes = _lies_outside(found, low, size)
    tl.store(symbols + position, tl.where(escapes, size, found - low), mask=inside)
    tl.store(num_escapes + tile, tl.sum((escapes & inside).to(tl.int32), axis=0).to(tl.int64))


@triton.jit
def put_marked(positions, marked, position, end):
    """Store the ``marked`` positions in order, the last one just before ``end``.

    Returns the index at which each was stored.
    """
    rank = tl.cumsum(marked.to(tl.int32), axis=0)
    place = end - tl.sum(marked.to(tl.int32), axis=0) + rank - 1
    tl.store(positions + place, position, mask=marked)
    return place


@jit_kernel(do_not_specialize=["low", "size"])
def _escapes_kernel(codes, num_codes, low, size, ends, positions, escapes, TILE: tl.constexpr):
    """One program stores the escapes of one tile, if it has any."""
    tile = tl.program_id(0).to(tl.int64)
    end = tl.load(ends + tile)
    if end > tl.load(ends + tile - 1, mask=tile > 0, other=0):
        position = tile * TILE + tl.arange(0, TILE)
        inside = position < num_codes
        found = tl.load(codes + position, mask=inside, other=0)
        escaped = inside & _lies_outside(found, low, size)
        place = put_marked(positions, escaped, position, end)
        tl.store(escapes + place, found, mask=escaped)


def map_symbols(codes: torch.Tensor, window: Window | None = None) -> Symbols:
    """See ``reference.map_symbols``; waits for the device once, for the window or the number of escapes."""
    num_codes, device = codes.numel(), codes.device
    num_escapes = None
    if window is None and num_codes:
        window, num_escapes = _choose_window(codes)
    window = window or Window(0, 1, escapes=False)
    symbols = torch.empty(num_codes, dtype=window.dtype, device=device)
    grid = (ceil_div(num_codes, _TILE),)
    ends = torch.empty(grid, dtype=torch.int64, device=device)
    if num_codes:
        _map_kernel[grid](
            codes, num_codes, window.low, window.size, symbols, ends, TILE=_TILE, num_warps=8
        )
    ends.cumsum_(0)
    if num_escapes is None:
        num_escapes = int(ends[-1]) if num_codes else 0
    positions = torch.empty(num_escapes, dtype=torch.int64, device=device)
    escapes = torch.empty(num_escapes, dtype=torch.int32, device=device)
    if num_escapes:
        _escapes_kernel[grid](
            codes, num_codes, window.low, window.size, ends, positions, escapes, TILE=_TILE
        )
    return Symbols(symbols, window.low, window.alphabet, positions, escapes)


@jit_kernel(do_not_specialize=["low"])
def _unmap_kernel(symbols, num_symbols, low, codes, TILE: tl.constexpr):
    """One program turns a tile of symbols into codes."""
    position = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = position < num_symbols
    found = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
    tl.store(codes + position, found + low, mask=inside)


def unmap_symbols(symbols: torch.Tensor, mapped: Symbols) -> torch.Tensor:
    """See ``reference.unmap_symbols``."""
    count = symbols.numel()
    codes = torch.empty(count, dtype=torch.int32, device=symbols.device)
    if count:
        grid = (ceil_div(count, _TILE),)
        _unmap_kernel[grid](symbols, count, mapped.low, codes, TILE=_TILE, num_warps=8)
    if mapped.escape_positions.numel():
        codes[mapped.escape_positions] = mapped.escape_codes
    return codes


@jit_kernel(do_not_specialize=["step", "inverse", "bound", "low"])
def _quantize_kernel(
    x, num_values, step, inverse, bound, low, symbols, num_outliers, facts,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program turns a tile of values into symbols and counts its outliers.

    ``step``, ``inverse`` and ``bound`` are float64 bits. Symbols are ``code - low`` modulo 256.
    """
    tile = tl.program_id(0).to(tl.int64)
    position = tile * TILE + tl.arange(0, TILE)
    inside = position < num_values
    values = load_values(x.to(tl.int64), position, num_values, 0.0, TYPE, ALIGNED, False)
    codes, holds = quantize_values(
        values, from_bits(step, TYPE), from_bits(inverse, TYPE), from_bits(bound, TYPE), TYPE
    )
    tl.store(symbols + position, ((codes - low) & 255).to(tl.uint8), mask=inside)
    missed = tl.sum((inside & ~holds).to(tl.int32), axis=0)
    tl.store(num_outliers + tile, missed.to(tl.int64))
    smallest = tl.min(tl.where(inside, codes, _LARGEST_CODE), axis=0)
    largest = tl.max(tl.where(inside, codes, -_LARGEST_CODE - 1), axis=0)
    _add_extent(smallest, largest, facts)


@jit_kernel(do_not_specialize=["step", "inverse", "bound"])
def _outliers_kernel(
    x, num_values, step, inverse, bound, ends, positions, TYPE: tl.constexpr, TILE: tl.constexpr
):
    """One program stores the positions of the outliers of one tile, if it has any."""
    tile = tl.program_id(0).to(tl.int64)
    end = tl.load(ends + tile)
    if end > tl.load(ends + tile - 1, mask=tile > 0, other=0):
        position = tile * TILE + tl.arange(0, TILE)
        inside = position < num_values
        values = load_values(x.to(tl.int64), position, num_values, 0.0, TYPE, False, False)
        _, holds = quantize_values(
            values, from_bits(step, TYPE), from_bits(inverse, TYPE), from_bits(bound, TYPE), TYPE
        )
        put_marked(positions, inside & ~holds, position, end)


def quantize_symbols(
    x: torch.Tensor, grid: Grid, low: float, high: float
) -> tuple[Symbols, torch.Tensor]:
    """See ``compose.quantize_symbols``; waits for the device once if 256 symbols suffice for all codes.

    Rounding is monotonic, so the codes of the ends of the range are the extreme codes, unless
    outliers, whose code is 0, change them.
    """
    compute = np.float64 if x.dtype == torch.float64 else np.float32
    if x.numel() and low <= high and max(abs(low), abs(high)) * grid.inverse < grid.radius:
        smallest = int(np.rint(compute(low) * compute(grid.inverse)))
        largest = int(np.rint(compute(high) * compute(grid.inverse)))
        if largest - smallest < NARROW:
            found = _quantize_narrow(x, grid, smallest)
            if found is not None:
                return found
    codes, positions = bounded_quantize(x, grid)
    return map_symbols(codes), positions


def _quantize_narrow(
    x: torch.Tensor, grid: Grid, guess: int
) -> tuple[Symbols, torch.Tensor] | None:
    """Quantize to symbols in one pass, assuming that ``guess`` is the smallest code.

    A wrong guess is corrected afterwards. Returns None if the codes span more than 256.
    """
    device, count = x.device, x.numel()
    num_tiles = ceil_div(count, _TILE)
    symbols = torch.empty(count, dtype=torch.uint8, device=device)
    # the number of outliers of each tile, then the facts _BELOW and _ABOVE
    ends = torch.zeros(num_tiles + 2, dtype=torch.int64, device=device)
    values: Any = x.reshape(-1)
    values = values.view(torch.int16) if x.dtype == torch.bfloat16 else values
    numbers = (bits_of(grid.step), bits_of(grid.inverse), bits_of(grid.bound))
    element = TYPES[x.dtype]
    _quantize_kernel[(num_tiles,)](
        values, count, *numbers, guess, symbols, ends, ends[num_tiles:],
        TYPE=element, ALIGNED=x.data_ptr() % 16 == 0, TILE=_TILE, num_warps=8,
    )  # fmt: skip
    ends[:num_tiles].cumsum_(0)
    num_outliers, below, above = ends[num_tiles - 1 :].tolist()
    smallest, largest = _BIAS.value - 1 - below, above - _BIAS.value
    if largest - smallest >= NARROW:
        return None
    if smallest != guess:
        symbols.add_((guess - smallest) % 256)
    positions = torch.empty(num_outliers, dtype=torch.int64, device=device)
    if num_outliers:
        _outliers_kernel[(num_tiles,)](
            values, count, *numbers, ends, positions,
            TYPE=element, TILE=_TILE,
        )  # fmt: skip
    none = torch.empty(0, dtype=torch.int64, device=device)
    mapped = Symbols(symbols, smallest, largest - smallest + 1, none, none.to(torch.int32))
    return mapped, positions


@jit_kernel(do_not_specialize=["low", "step"])
def _dequantize_kernel(
    symbols, num_symbols, low, step, out,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program turns a tile of symbols into values."""
    position = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = position < num_symbols
    found = tl.load(symbols + position, mask=inside, other=0).to(tl.int32) + low
    number = from_bits(step, TYPE)
    values = found.to(number.dtype) * number
    store_values(out.to(tl.int64), position, values, num_symbols, TYPE, ALIGNED, False)


def put_escapes(other: Symbols, step: float, out: torch.Tensor) -> None:
    """Write the values of the escaped codes into the flat ``out``."""
    if other.escape_positions.numel():
        compute = torch.float64 if out.dtype == torch.float64 else torch.float32
        values = other.escape_codes.to(compute) * step
        out[other.escape_positions] = values.to(out.dtype)


def dequantize_symbols(
    symbols: torch.Tensor, other: Symbols, step: float, out: torch.Tensor
) -> None:
    """See ``compose.dequantize_symbols``."""
    values = out.view(-1)
    if out.numel():
        carrier = values.view(torch.int16) if out.dtype == torch.bfloat16 else values
        _dequantize_kernel[(ceil_div(out.numel(), _TILE),)](
            symbols, out.numel(), other.low, bits_of(step), carrier,
            TYPE=TYPES[out.dtype], ALIGNED=out.data_ptr() % 16 == 0, TILE=_TILE, num_warps=8,
        )  # fmt: skip
    put_escapes(other, step, values)
