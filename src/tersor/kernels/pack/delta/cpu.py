"""Quantized differences in numba: codes and residuals never leave the first-level cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tersor.kernels.pack.blocks.cpu import pack_with, unpack_arguments
from tersor.kernels.pack.fields.cpu import pack_tile, unpack_bytes, unpack_tile, widest
from tersor.kernels.quantize.cpu.quantize import (
    collect_outliers,
    quantize_tile,
    quantizer_arguments,
)
from tersor.kernels.quantize.grid import TILE, Grid
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import address_of, njit
from tersor.raw_bytes import empty


@njit(nogil=True, cache=True)
def _residual_fields(codes: Any, fields: Any) -> Any:
    """Write the zigzag of ``codes[i + 1] - codes[i]``, then zeros; return the bitwise or of all fields."""
    union = np.uint32(0)
    before, after = codes[:-1], codes[1:]
    for i in range(after.size):
        residual = np.int32(after[i] - before[i])
        field = np.uint32(np.int32(residual << np.int32(1)) ^ np.int32(residual >> np.int32(31)))
        fields[i] = field
        union = np.uint32(union | field)
    for i in range(after.size, fields.size):
        fields[i] = np.uint32(0)
    return union


@njit(nogil=True, cache=True)
def _pack_kernel(
    values: Any,
    inverse: Any,
    step: Any,
    bound: Any,
    radius: Any,
    narrow: int,
    block: int,
    bases: Any,
    widths: Any,
    words: Any,
    tile_words: Any,
    tile_outliers: Any,
    s: int,
    e: int,
) -> Any:
    """Pack tiles ``[s, e)`` into their worst-case section of ``words``; return the words written."""
    # the first entry is the code before the tile
    codes = np.zeros(TILE + 1, dtype=np.int32)
    fields = np.empty(TILE, dtype=np.uint32)
    octets = np.empty(TILE, dtype=np.uint8)
    pairs = np.empty(TILE, dtype=np.uint16)
    if s > 0:
        last = values[s * TILE - 1 : s * TILE]
        quantize_tile(last, inverse, step, bound, radius, narrow, codes[:1])
    per_tile = TILE // block
    start = address_of(words) + np.uint64(s) * np.uint64(4 * TILE)
    total = np.uint64(0)
    for tile in range(s, e):
        part = values[tile * TILE : min(tile * TILE + TILE, values.size)]
        low, high = tile * per_tile, min(tile * per_tile + per_tile, widths.size)
        target = codes[1 : part.size + 1]
        tile_outliers[tile] = quantize_tile(part, inverse, step, bound, radius, narrow, target)
        union = _residual_fields(codes[: part.size + 1], fields)
        codes[0] = codes[part.size]
        address = start + np.uint64(4) * total
        num_words = pack_tile(fields, union, octets, pairs, block, widths[low:high], address)
        tile_words[tile] = num_words
        total += num_words
    return total


def delta_pack(
    x: torch.Tensor, grid: Grid, block: int = 32, lead: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``compose.delta_pack``."""
    arguments = quantizer_arguments(x, grid)
    tile_outliers = np.zeros(-(-x.numel() // TILE), dtype=np.int64)
    body = pack_with(_pack_kernel, arguments, (tile_outliers,), x.numel(), block, False, lead)
    return body, torch.from_numpy(collect_outliers(*arguments, tile_outliers))


@njit(nogil=True, cache=True)
def _from_zigzag(fields: Any, residuals: Any) -> None:
    for i in range(residuals.size):
        field = np.uint32(fields[i])
        residuals[i] = np.int32(np.uint32(field >> np.uint32(1))) ^ -np.int32(field & np.uint32(1))


@njit(nogil=True, cache=True)
def _unpack_residuals(
    words: Any, offset: int, widths: Any, block: int, buffers: Any, residuals: Any
) -> None:
    """Write one tile's residuals; ``buffers`` are scratch memory of 4, 1 and 2 bytes per field."""
    fields, octets, pairs = buffers
    address = address_of(words) + np.uint64(4) * np.uint64(offset)
    if widest(widths) <= 8:
        unpack_bytes(octets, block, widths, address)
        _from_zigzag(octets, residuals)
    else:
        unpack_tile(fields, octets, pairs, block, widths, address)
        _from_zigzag(fields, residuals)


@njit(nogil=True, cache=True)
def _buffers() -> Any:
    return np.empty(TILE, np.uint32), np.empty(TILE, np.uint8), np.empty(TILE, np.uint16)


@njit(nogil=True, cache=True)
def _sum_kernel(
    words: Any, offsets: Any, widths: Any, block: int, tile_sums: Any, s: int, e: int
) -> None:
    """Write the sum of the residuals of each of the full tiles ``[s, e)``."""
    buffers = _buffers()
    residuals = np.empty(TILE, dtype=np.int32)
    per_tile = TILE // block
    for tile in range(s, e):
        tile_widths = widths[tile * per_tile : tile * per_tile + per_tile]
        _unpack_residuals(words, offsets[tile], tile_widths, block, buffers, residuals)
        total = np.int32(0)
        for i in range(TILE):
            total = np.int32(total + residuals[i])
        tile_sums[tile] = total


@njit(nogil=True, cache=True)
def _unpack_kernel(
    words: Any,
    offsets: Any,
    widths: Any,
    block: int,
    step: Any,
    out: Any,
    code: Any,
    s: int,
    e: int,
) -> None:
    """Decode tiles ``[s, e)``; ``code`` is the code before them."""
    buffers = _buffers()
    codes = np.empty(TILE, dtype=np.int32)
    per_tile = TILE // block
    for tile in range(s, e):
        part = out[tile * TILE : min(tile * TILE + TILE, out.size)]
        tile_widths = widths[tile * per_tile : min(tile * per_tile + per_tile, widths.size)]
        _unpack_residuals(words, offsets[tile], tile_widths, block, buffers, codes[: part.size])
        for i in range(part.size):
            code = np.int32(code + codes[i])
            codes[i] = code
        for i in range(part.size):
            part[i] = out.dtype.type(codes[i]) * step


def delta_unpack(body: torch.Tensor, step: float, out: torch.Tensor, block: int = 32) -> int:
    """See ``compose.delta_unpack``.

    The residuals of all parts but the last are first summed, also in parallel, so that every thread knows
    the code that its part starts from.
    """
    (words, offsets, widths, _, _), nbytes = unpack_arguments(body, out.numel(), block, False)
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    decoded = out.view(-1) if out.dtype == wide else empty((out.numel(),), wide, out.device)
    values = decoded.numpy()
    arguments = (words, offsets, widths, block)
    parts = threads.split(-(-values.size // TILE), 4 * TILE)
    tile_sums = np.zeros(parts[-1][0], dtype=np.int32)
    sums = threads.split(tile_sums.size, 4 * TILE)
    threads.run(_sum_kernel, [(*arguments, tile_sums, s, e) for s, e in sums])
    before = np.cumsum(np.append(np.int32(0), tile_sums), dtype=np.int32)
    target = (values.dtype.type(step), values)
    threads.run(_unpack_kernel, [(*arguments, *target, before[s], s, e) for s, e in parts])
    if out.dtype != wide:
        out.view(-1).copy_(decoded)
    return nbytes
