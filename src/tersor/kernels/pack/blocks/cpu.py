"""Fixed-length packing in numba, alone and fused with quantization.

Each thread packs a contiguous run of tiles into its own section of one worst-case buffer, from which
the exact body is then assembled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tersor.kernels.pack.blocks.layout import BitpackLayout
from tersor.kernels.pack.fields.cpu import (
    SLACK_NBYTES,
    pack_tile,
    unpack_bytes,
    unpack_tile,
    widest,
)
from tersor.kernels.quantize.cpu.quantize import (
    collect_outliers,
    quantize_tile,
    quantizer_arguments,
)
from tersor.kernels.quantize.grid import TILE, Grid
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import address_of, njit
from tersor.kernels.runtime.scratch import scratch


@njit(nogil=True, cache=True)
def to_fields(codes: Any, fields: Any, block: int, bases: Any) -> Any:
    """Convert a tile's codes to unsigned fields: zigzag, or relative to the block's minimum.

    Returns the bitwise or of all fields. Minima are written to ``bases``; if it is empty, fields are zigzag.
    """
    union = np.uint32(0)
    if bases.size == 0:
        for i in range(codes.size):
            code = codes[i]
            field = np.uint32(np.int32(code << np.int32(1)) ^ np.int32(code >> np.int32(31)))
            fields[i] = field
            union = np.uint32(union | field)
        for i in range(codes.size, fields.size):
            fields[i] = np.uint32(0)
        return union
    for b in range(-(-codes.size // block)):
        part = codes[b * block : min(b * block + block, codes.size)]
        low = part[0]
        for i in range(part.size):
            low = min(low, part[i])
        bases[b] = low
        for i in range(part.size):
            field = np.uint32(np.int32(part[i] - low))
            fields[b * block + i] = field
            union = np.uint32(union | field)
        for i in range(part.size, block):
            fields[b * block + i] = np.uint32(0)
    return union


@njit(nogil=True, cache=True)
def _to_codes(fields: Any, codes: Any, block: int, bases: Any) -> None:
    """Invert ``to_fields``."""
    if bases.size == 0:
        for i in range(codes.size):
            field = fields[i]
            codes[i] = np.int32(np.uint32(field >> np.uint32(1))) ^ -np.int32(field & np.uint32(1))
        return
    for i in range(codes.size):
        codes[i] = np.int32(np.int32(fields[i]) + bases[i // block])


@njit(nogil=True, cache=True)
def _pack_kernel(
    codes: Any, block: int, bases: Any, widths: Any, words: Any, tile_words: Any, s: int, e: int
) -> Any:
    """Pack tiles ``[s, e)`` into their worst-case section of ``words``; return the words written."""
    fields = np.empty(TILE, dtype=np.uint32)
    octets = np.empty(TILE, dtype=np.uint8)
    pairs = np.empty(TILE, dtype=np.uint16)
    per_tile = TILE // block
    start = address_of(words) + np.uint64(s) * np.uint64(4 * TILE)
    total = np.uint64(0)
    for tile in range(s, e):
        low, high = tile * per_tile, min(tile * per_tile + per_tile, widths.size)
        part = codes[tile * TILE : min(tile * TILE + TILE, codes.size)]
        union = to_fields(part, fields, block, bases[low:high])
        address = start + np.uint64(4) * total
        num_words = pack_tile(fields, union, octets, pairs, block, widths[low:high], address)
        tile_words[tile] = num_words
        total += num_words
    return total


@njit(nogil=True, cache=True)
def _quantize_pack_kernel(
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
    """Quantize and pack tiles ``[s, e)`` without codes leaving the first-level cache; return the words written."""
    codes = np.empty(TILE, dtype=np.int32)
    fields = np.empty(TILE, dtype=np.uint32)
    octets = np.empty(TILE, dtype=np.uint8)
    pairs = np.empty(TILE, dtype=np.uint16)
    per_tile = TILE // block
    start = address_of(words) + np.uint64(s) * np.uint64(4 * TILE)
    total = np.uint64(0)
    for tile in range(s, e):
        part = values[tile * TILE : min(tile * TILE + TILE, values.size)]
        low, high = tile * per_tile, min(tile * per_tile + per_tile, widths.size)
        tile_codes = codes[: part.size]
        tile_outliers[tile] = quantize_tile(part, inverse, step, bound, radius, narrow, tile_codes)
        union = to_fields(tile_codes, fields, block, bases[low:high])
        address = start + np.uint64(4) * total
        num_words = pack_tile(fields, union, octets, pairs, block, widths[low:high], address)
        tile_words[tile] = num_words
        total += num_words
    return total


@njit(nogil=True, cache=True)
def _unpack_kernel(
    words: Any, offsets: Any, widths: Any, block: int, bases: Any, codes: Any, s: int, e: int
) -> None:
    fields = np.empty(TILE, dtype=np.uint32)
    octets = np.empty(TILE, dtype=np.uint8)
    pairs = np.empty(TILE, dtype=np.uint16)
    per_tile = TILE // block
    for tile in range(s, e):
        low, high = tile * per_tile, min(tile * per_tile + per_tile, widths.size)
        address = address_of(words) + np.uint64(4) * np.uint64(offsets[tile])
        unpack_tile(fields, octets, pairs, block, widths[low:high], address)
        part = codes[tile * TILE : min(tile * TILE + TILE, codes.size)]
        _to_codes(fields, part, block, bases[low:high])


@njit(nogil=True, cache=True)
def is_consistent(offsets: Any, widths: Any, block: int) -> bool:
    """True if all widths are at most 32 and add up to the offset of every tile."""
    total = np.uint64(0)
    per_tile = TILE // block
    for tile in range(offsets.size):
        if np.uint64(offsets[tile]) != total:
            return False
        for width in widths[tile * per_tile : tile * per_tile + per_tile]:
            if width > np.uint8(32):
                return False
            total += np.uint64(width) * np.uint64(block // 32)
    return True


@njit(nogil=True, cache=True)
def unpack_dequantize_kernel(
    words: Any,
    offsets: Any,
    widths: Any,
    block: int,
    bases: Any,
    step: Any,
    out: Any,
    s: int,
    e: int,
) -> None:
    """Unpack and dequantize tiles ``[s, e)`` of a checked body."""
    codes = np.empty(TILE, dtype=np.int32)
    fields = np.empty(TILE, dtype=np.uint32)
    octets = np.empty(TILE, dtype=np.uint8)
    pairs = np.empty(TILE, dtype=np.uint16)
    per_tile = TILE // block
    for tile in range(s, e):
        low, high = tile * per_tile, min(tile * per_tile + per_tile, widths.size)
        address = address_of(words) + np.uint64(4) * np.uint64(offsets[tile])
        part = out[tile * TILE : min(tile * TILE + TILE, out.size)]
        if bases.size == 0 and widest(widths[low:high]) <= 8:
            unpack_bytes(octets, block, widths[low:high], address)
            for i in range(part.size):
                code = np.int32(octets[i] >> np.uint8(1)) ^ -np.int32(octets[i] & np.uint8(1))
                part[i] = out.dtype.type(np.int32(code)) * step
        else:
            unpack_tile(fields, octets, pairs, block, widths[low:high], address)
            _to_codes(fields, codes[: part.size], block, bases[low:high])
            for i in range(part.size):
                part[i] = out.dtype.type(codes[i]) * step


def _assemble(
    layout: BitpackLayout,
    words: Any,
    widths: Any,
    tile_words: Any,
    parts: Any,
    totals: Any,
    lead: int,
) -> torch.Tensor:
    """Join the threads' sections of words, with offsets and widths, into one body."""
    buffer = np.empty(lead + layout.body_nbytes(int(sum(totals))), dtype=np.uint8)
    body = buffer[lead:]
    num_tiles, widths_start = layout.num_tiles, layout.widths_start
    offsets = body[: 4 * (num_tiles + 1)].view(np.uint32)
    offsets[0] = 0
    np.cumsum(tile_words, out=offsets[1:], dtype=np.uint32)
    body[4 * (num_tiles + 1) : widths_start] = 0
    body[widths_start : widths_start + widths.size] = widths
    body[widths_start + widths.size : layout.words_start] = 0
    end = layout.words_start
    for (start, _), total in zip(parts, totals, strict=True):
        nbytes = 4 * int(total)
        body[end : end + nbytes] = words[start * 4 * TILE : start * 4 * TILE + nbytes]
        end += nbytes
    body[end:] = 0
    return torch.from_numpy(buffer)


def pack_with(
    kernel: Any,
    arguments: tuple[Any, ...],
    extra: tuple[Any, ...],
    n: int,
    block: int,
    base: bool,
    lead: int,
) -> torch.Tensor:
    """Return the body of ``n`` codes that ``kernel`` packs, on as many threads as pay off.

    The kernel is called with ``(*arguments, block, bases, widths, words, tile_words, *extra, start, stop)``
    for tiles ``[start, stop)`` and returns the number of words it wrote.
    """
    layout = BitpackLayout(n, block)
    words = scratch(layout.num_blocks * block * 4 + SLACK_NBYTES)
    widths = np.empty(layout.num_blocks, dtype=np.uint8)
    bases = np.empty(layout.num_blocks if base else 0, dtype=np.int32)
    tile_words = np.empty(layout.num_tiles, dtype=np.int64)
    parts = threads.split(layout.num_tiles, 4 * TILE)
    common = (*arguments, block, bases, widths, words, tile_words, *extra)
    totals = threads.run(kernel, [(*common, start, stop) for start, stop in parts])
    if not base:
        return _assemble(layout, words, widths, tile_words, parts, totals, lead)
    body = _assemble(layout, words, widths, tile_words, parts, totals, 0)
    differences = np.diff(bases, prepend=np.int32(0)).astype(np.int32)
    return torch.cat([pack(torch.from_numpy(differences), 32, lead=lead), body])


def pack(codes: torch.Tensor, block: int = 32, base: bool = False, lead: int = 0) -> torch.Tensor:
    """See ``reference.pack``."""
    return pack_with(_pack_kernel, (codes.numpy(),), (), codes.numel(), block, base, lead)


def quantize_pack(
    x: torch.Tensor, grid: Grid, block: int = 32, base: bool = False, lead: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``compose.quantize_pack``."""
    arguments = quantizer_arguments(x, grid)
    tile_outliers = np.zeros(-(-x.numel() // TILE), dtype=np.int64)
    body = pack_with(
        _quantize_pack_kernel, arguments, (tile_outliers,), x.numel(), block, base, lead
    )
    return body, torch.from_numpy(collect_outliers(*arguments, tile_outliers))


def unpack_arguments(
    body: torch.Tensor, num_codes: int, block: int, base: bool
) -> tuple[tuple[Any, ...], int]:
    """Check a body; return its ``(words, offsets, widths, block, bases)`` and its size in bytes.

    Raises:
        CorruptDataError: the body is not what ``pack`` writes for ``num_codes`` codes.
    """
    layout = BitpackLayout(num_codes, block)
    bases, lead_nbytes = np.empty(0, dtype=np.int32), 0
    if base:
        differences, lead_nbytes = unpack(body, layout.num_blocks, 32)
        bases = np.cumsum(differences.numpy(), dtype=np.int32)
    offsets, widths, words = (part.numpy() for part in layout.split(body[lead_nbytes:]))
    offsets = offsets.view(np.uint32)
    consistent = is_consistent(offsets, widths, block)
    nbytes = layout.checked_nbytes(consistent, int(offsets[-1]), words.size)
    return (words, offsets, widths, block, bases), lead_nbytes + nbytes


def unpack(
    body: torch.Tensor, num_codes: int, block: int = 32, base: bool = False
) -> tuple[torch.Tensor, int]:
    """See ``reference.unpack``."""
    arguments, nbytes = unpack_arguments(body, num_codes, block, base)
    codes = np.empty(num_codes, dtype=np.int32)
    parts = threads.split(-(-num_codes // TILE), 4 * TILE)
    threads.run(_unpack_kernel, [(*arguments, codes, start, stop) for start, stop in parts])
    return torch.from_numpy(codes), nbytes


def unpack_dequantize(
    body: torch.Tensor, step: float, out: torch.Tensor, block: int = 32, base: bool = False
) -> int:
    """See ``compose.unpack_dequantize``."""
    arguments, nbytes = unpack_arguments(body, out.numel(), block, base)
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    decoded = (
        out.view(-1) if out.dtype == wide else torch.empty(out.numel(), dtype=wide, device="cpu")
    )
    values = decoded.numpy()
    step = values.dtype.type(step)
    parts = threads.split(-(-values.size // TILE), 4 * TILE)
    threads.run(
        unpack_dequantize_kernel,
        [(*arguments, step, values, start, stop) for start, stop in parts],
    )
    if out.dtype != wide:
        out.view(-1).copy_(decoded)
    return nbytes
