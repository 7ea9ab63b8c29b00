"""Quantization of a tile of values, with optional prediction, to symbols of ``ans`` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.entropy.symbols.alphabet import WIDE
from tersor.kernels.pack.blocks.gpu.plane_tile import (
    can_be_planes,
    line_residuals,
    plane_residuals,
)
from tersor.kernels.predict.gpu import residual_codes
from tersor.kernels.quantize.gpu.values import (
    LARGEST_CODE,
    LEAST_SHIFTED,
    MOST_SHIFTED,
    SHIFT,
    SMALLEST_CODE,
    load_values,
    quantize_values,
    shifted_codes,
)
from tersor.kernels.quantize.grid import TILE as PLANE_VALUES
from tersor.kernels.runtime.gpu.element_types import F64

_WIDE = tl.constexpr(WIDE)
_PART = tl.constexpr(PLANE_VALUES)


@triton.jit
def _extended(low, high, other_low, other_high):
    return tl.minimum(low, other_low), tl.maximum(high, other_high)


@triton.jit
def _extent(codes, inside):
    """Return the smallest and the largest of the codes that are ``inside``."""
    low, high = tl.where(inside, codes, LARGEST_CODE), tl.where(inside, codes, SMALLEST_CODE)
    return tl.reduce((tl.min(low, axis=1), tl.max(high, axis=1)), 0, _extended)


@triton.jit
def escape_window(codes, window):
    """Return the symbols of codes for a static table, and which codes escape it."""
    symbols = codes - window[0]
    escapes = (symbols < 0) | (symbols >= window[1])
    return tl.where(escapes, window[1], symbols), escapes


@triton.jit
def _fields(codes, NBYTES: tl.constexpr):
    """Return codes [fours, 4] modulo 256 or 4096, each shifted to its place in a word of four."""
    if NBYTES == 1:
        return (codes & 255) << (8 * tl.arange(0, 4))[None, :]
    else:
        return (codes & (_WIDE - 1)).to(tl.int64) << (16 * tl.arange(0, 4))[None, :]


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _store_fours(target, codes, limit, NBYTES: tl.constexpr, WHOLE: tl.constexpr):
    """Store codes [fours, 4] as symbols; unless ``WHOLE``, only fours that begin below ``limit``.

    One thread stores four symbols as one word; storing single symbols would first have to move them between
    threads.
    """
    word = tl.arange(0, codes.shape[0])
    fields = _fields(codes, NBYTES)
    words = target.to(tl.pointer_type(fields.dtype)) + word
    joined = tl.reduce(fields, 1, _either)
    if WHOLE:
        tl.store(words, joined)
    else:
        tl.store(words, joined, mask=4 * word < limit)


@triton.jit
def _count(marks):
    """Return the number of true values in [fours, 4]."""
    return tl.sum(tl.sum(marks.to(tl.int32), axis=1), axis=0)


@triton.jit
def quantize_tile(
    address, limit, grid, target, window, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr, NBYTES: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    """Store the symbols of a tile of ``limit`` values.

    Returns its smallest and largest code, its numbers of outliers and escapes, and a flag that is set only
    if two values are finite and differ.
    """
    position = tl.arange(0, TILE // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, False)
    step, inverse, bound = grid
    codes, holds = quantize_values(values, step, inverse, bound, TYPE)
    inside = position < limit
    num_escapes = limit * 0
    symbols = codes
    if STATIC:
        symbols, escapes = escape_window(codes, window)
        num_escapes = _count(escapes & inside)
    _store_fours(target, symbols, limit, NBYTES, False)
    low, high = _extent(codes, inside)
    least, most = _extent(codes, inside & holds)
    return low, high, _count(inside & ~holds), num_escapes, least < most


@triton.jit
def _wider(low, high, error, other_low, other_high, other_error):
    worst = tl.maximum(error, other_error, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(low, other_low), tl.maximum(high, other_high), worst


@triton.jit
def quantize_whole_tile(
    address, grid, target, window, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    NBYTES: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    """Store the symbols of a whole tile, as if every value had a code.

    Returns its smallest and largest code, its number of escapes, and whether all codes are correct; if not, the
    tile must be quantized again. Checking the largest error instead of every one takes half the instructions.
    """
    position = tl.arange(0, TILE // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(address, position, TILE, 0.0, TYPE, ALIGNED, True)
    step, inverse, bound = grid
    shifted, errors = shifted_codes(values, step, inverse, TYPE)
    num_escapes = tl.full((), 0, tl.int32)
    symbols = shifted
    if STATIC:
        symbols, escapes = escape_window(shifted - SHIFT, window)
        num_escapes = _count(escapes)
    _store_fours(target, symbols, TILE, NBYTES, True)
    low, high, worst = tl.reduce(tl.reduce((shifted, shifted, errors), 1, _wider), 0, _wider)
    is_right = (worst <= bound) & (low >= LEAST_SHIFTED) & (high <= MOST_SHIFTED)
    return low - SHIFT, high - SHIFT, num_escapes, is_right


@triton.jit
def _plain_part(
    address, base, count, shape, grid, target, window, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    NBYTES: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Store the symbols of the residuals of 1024 values, as if every value had a code.

    Returns the smallest and largest residual, the number of escapes, whether all residuals are correct, and a
    flag that is set only if values vary.
    """
    if DIMS == 1:
        residuals, is_right, varies = line_residuals(address, base, count, grid, TYPE, ALIGNED)
    else:
        residuals, is_right, varies = plane_residuals(
            address, base, count, shape, grid, TYPE, ALIGNED, DIMS
        )
    symbols, num_escapes = residuals, tl.full((), 0, tl.int32)
    if STATIC:
        symbols, escapes = escape_window(residuals, window)
        num_escapes = _count(escapes)
    _store_fours(target, symbols, _PART, NBYTES, True)
    low, high = tl.reduce(tl.reduce((residuals, residuals), 1, _extended), 0, _extended)
    return low, high, num_escapes, is_right, varies


@triton.jit
def _careful_part(
    address, base, count, shape, grid, target, window, TYPE: tl.constexpr, NBYTES: tl.constexpr,
    STATIC: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Store the symbols of the residuals of any 1024 values; returns what ``quantize_tile`` does, for residuals."""
    LANES: tl.constexpr = 256
    low, high = tl.full([LANES], LARGEST_CODE, tl.int32), tl.full([LANES], SMALLEST_CODE, tl.int32)
    least, most, zeros = low, high, tl.zeros([LANES], dtype=tl.int32)
    missed, escaped = zeros, zeros
    integer: tl.constexpr = tl.uint8 if NBYTES == 1 else tl.int16
    limit = count.to(tl.int32)
    for start in range(0, _PART, LANES):
        place = start + tl.arange(0, LANES)
        position = (base + place).to(tl.int32)
        inside = position < limit
        # an extra axis of one value predicts nothing
        residuals, codes, holds = residual_codes(
            address, position, limit, shape, grid, TYPE, DIMS if DIMS > 1 else 2
        )
        symbols = residuals
        if STATIC:
            symbols, escapes = escape_window(residuals, window)
            escaped += (escapes & inside).to(tl.int32)
        symbols = symbols & (255 if NBYTES == 1 else _WIDE - 1)
        tl.store(target.to(tl.pointer_type(integer)) + place, symbols.to(integer), mask=inside)
        low = tl.minimum(low, tl.where(inside, residuals, LARGEST_CODE))
        high = tl.maximum(high, tl.where(inside, residuals, SMALLEST_CODE))
        least = tl.minimum(least, tl.where(inside & holds, codes, LARGEST_CODE))
        most = tl.maximum(most, tl.where(inside & holds, codes, SMALLEST_CODE))
        missed += (inside & ~holds).to(tl.int32)
    varies = tl.min(least, axis=0) < tl.max(most, axis=0)
    num_missed, num_escaped = tl.sum(missed, axis=0), tl.sum(escaped, axis=0)
    return tl.min(low, axis=0), tl.max(high, axis=0), num_missed, num_escaped, varies


@triton.jit
def quantize_predicted(
    address, base, limit, count, shape, grid, target, window, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, NBYTES: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Store the symbols of the residuals of a tile of ``limit`` values, 1024 at a time.

    Returns what ``quantize_tile`` does, with the smallest and largest residual instead of code.
    """
    low, high = tl.full((), LARGEST_CODE, tl.int32), tl.full((), SMALLEST_CODE, tl.int32)
    missed, escaped, varies = limit * 0, limit * 0, limit < 0
    for start in range(0, limit, _PART):
        own, first = target + start * NBYTES, base + start
        part_low, part_high, part_missed, part_escaped = low * 0, low * 0, low * 0, low * 0
        is_done, differs = limit < 0, limit < 0
        if TYPE != F64:
            is_plain = start + _PART <= limit
            if DIMS > 1:
                is_plain = is_plain & can_be_planes(first, count, shape)
            if is_plain:
                part_low, part_high, part_escaped, is_done, differs = _plain_part(
                    address, first, count, shape, grid, own, window, TYPE, ALIGNED, NBYTES, STATIC,
                    DIMS,
                )  # fmt: skip
        if not is_done:
            part_low, part_high, part_missed, part_escaped, differs = _careful_part(
                address, first, count, shape, grid, own, window, TYPE, NBYTES, STATIC, DIMS
            )
        low, high = tl.minimum(low, part_low), tl.maximum(high, part_high)
        missed, escaped, varies = missed + part_missed, escaped + part_escaped, varies | differs
    return low, high, missed, escaped, varies
