"""Values of a list of tensors quantized, and predicted perhaps, to symbols of ``ans`` in Triton.

Values become bytes, codes modulo 256: what the bytes mean is known as soon as all are written, and the coder's
tables take it into account. Where a bound says that there are more codes they become int16, codes modulo 4096
(``ans_wide.py``). A static table says beforehand which codes have symbols: values become these then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu.ans_plan import Quantized, decide_alphabets
from tersor.kernels.batch.gpu.ans_wide import Routes
from tersor.kernels.entropy.rans.gpu.encode_streams import Streams
from tersor.kernels.entropy.rans.gpu.table import static_table
from tersor.kernels.entropy.symbols.alphabet import WIDE
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx
from tersor.kernels.pack.blocks.gpu.plane_tile import (
    can_be_planes,
    line_residuals,
    plane_residuals,
)
from tersor.kernels.payload.gpu.uncoded import examine_tile, load_grid
from tersor.kernels.predict.axes import predicting_shape
from tersor.kernels.predict.gpu import load_shape, residual_codes, shape_table
from tersor.kernels.quantize.gpu.finite_range import TILE as RANGE_TILE
from tersor.kernels.quantize.gpu.finite_range import fold_ranges
from tersor.kernels.quantize.gpu.grids import grid_table
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
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    addresses,
    are_aligned,
    bound_table,
    tile_table,
)
from tersor.kernels.runtime.workspace import Layout
from tersor.types import Bound

TILE: Final = 4096
VALUES_PER_STEP: Final = 1024
"""Values at a time where a tile is looked at once more."""
_WARPS: Final = 4
"""A program has 32 values per thread, whose loads are all on their way at once."""
_MAX_REGISTERS: Final = 80
"""Per thread. The tiles that are done again the careful way, few as they are, would take more, and
leave room for fewer programs: 436 MB take 135 us with 96 registers, 128 with 80."""
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
    """Return the symbols of codes by a static table, and which of them are escapes."""
    symbols = codes - window[0]
    escapes = (symbols < 0) | (symbols >= window[1])
    return tl.where(escapes, window[1], symbols), escapes


@triton.jit
def _fields(codes, NBYTES: tl.constexpr):
    """Return codes, four of which make one word, modulo 256 or 4096 and at their places in it."""
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

    Four symbols make one word, which one thread stores: single ones would have to pass from thread to
    thread first.
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
    """Return how many of [fours, 4] are true."""
    return tl.sum(tl.sum(marks.to(tl.int32), axis=1), axis=0)


@triton.jit
def _quantize_tile(
    address, limit, grid, target, window, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr, NBYTES: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    """Store the symbols of a tile of ``limit`` values.

    Returns its smallest and largest code, its outliers, its escapes, and a proof: true only if two values
    are finite and differ.
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
def _quantize_whole_tile(
    address, grid, target, window, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    NBYTES: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    """Store the symbols of a whole tile, as if every value had a code.

    Returns its smallest and largest code, its escapes, and whether all codes are right: if not, the tile must
    be quantized again. Looking at the largest error, and not at every one, takes half the instructions.
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

    Returns their smallest and largest, their escapes, whether all are right, and a proof that values vary.
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
    """Store the symbols of the residuals of 1024 values, whatever these are; see ``_quantize_tile``."""
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
        # an axis before the last that has one value predicts nothing
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
def _quantize_predicted(
    address, base, limit, count, shape, grid, target, window, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, NBYTES: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Store the symbols of the residuals of a tile of ``limit`` values, 1024 at a time.

    Returns what ``_quantize_tile`` does; the smallest and the largest are of residuals.
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


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, grids, keys, places, symbols, extents, missing, varying,
    escaping, streams, num_narrow, window_low, window_size, shapes, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr, NBYTES: tl.constexpr,
    HAS_BOTH: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """One program quantizes one tile to symbols of ``NBYTES`` and notes what ``Quantized`` says of it.

    ``HAS_BOTH`` says that other tensors have symbols of another size: their tiles are left alone.

    Only a tensor whose values do not vary needs its range, and the number of its values that are not
    finite, after this, so a tile proves that its values vary, or looks at them once more.
    """
    # backwards: the values that the pass before this one read last are still in the cache
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k = tl.load(owners + tile)
    if HAS_BOTH and (tl.load(streams + k) >= num_narrow) != (NBYTES == 2):
        return
    base, count = (tile - tl.load(first_tiles + k)) * TILE, tl.load(counts + k)
    address, grid = tl.load(starts + k) + base * (TYPE.primitive_bitwidth // 8), load_grid(grids, k)
    limit = tl.minimum(count - base, TILE).to(tl.int32)
    target = symbols + tl.load(places + k) + base * NBYTES
    window = window_low, window_size
    low, high, missed, num_escapes = limit * 0, limit * 0, limit * 0, limit * 0
    is_done = limit < 0
    if (TYPE != F64) and (DIMS == 0) and (limit == TILE):
        low, high, num_escapes, is_done = _quantize_whole_tile(
            address, grid, target, window, TYPE, ALIGNED, TILE, NBYTES, STATIC
        )
    varies = low < high
    if not is_done:
        if DIMS == 0:
            low, high, missed, num_escapes, varies = _quantize_tile(
                address, limit, grid, target, window, TYPE, ALIGNED, TILE, NBYTES, STATIC
            )
        else:
            low, high, missed, num_escapes, varies = _quantize_predicted(
                tl.load(starts + k), base, limit, count, load_shape(shapes, k), grid, target,
                window, TYPE, ALIGNED, NBYTES, STATIC, DIMS,
            )  # fmt: skip
    specials = 0
    if not varies:
        specials = examine_tile(address, limit, keys + 2 * k, TYPE, PART)
    # places of a tile's own: thousands of programs that meet in one place take 1 ns each
    tl.store(extents + 2 * tile, low)
    tl.store(extents + 2 * tile + 1, high)
    tl.store(missing + tile, (missed.to(tl.int64) << 32) | specials)
    tl.store(varying + tile, varies.to(tl.int8))
    if STATIC:
        tl.store(escaping + tile, num_escapes.to(tl.int64))


@lru_cache(maxsize=64)
def _layout(num_tensors: int, num_tiles: int, num_symbols: int, is_static: bool) -> Layout:
    """Return where the symbols and the fields of ``Quantized`` lie."""
    return Layout.of(
        {
            "symbols": (torch.uint8, num_symbols),
            "extents": (torch.int32, 2 * num_tiles),
            "missing": (torch.int64, num_tiles),
            "varying": (torch.int8, num_tiles),
            "escaping": (torch.int64, num_tiles * is_static),
            "totals": (torch.int64, 3 * num_tensors),
            "counts": (torch.int64, num_tensors),
            "alphabets": (torch.int32, num_tensors),
            "lows": (torch.int32, num_tensors),
        }
    )


def shapes_of(xs: Sequence[torch.Tensor], dims: int) -> torch.Tensor | None:
    """Return the sizes of the axes that predict, on the device; None if none does."""
    if dims == 0:
        return None
    shapes = tuple(predicting_shape(tuple(x.shape), dims) for x in xs)
    return shape_table(shapes, xs[0].device)


def quantize(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: AnsEncoder,
    dims: int,
    routes: Routes,
    keys: torch.Tensor,
    status: torch.Tensor,
) -> tuple[Streams, Quantized, torch.Tensor]:
    """Quantize all tensors, and predict; return their streams, what is known of them, and their grids.

    ``keys`` get the ranges of tensors with relative bounds, and of those that may not vary; ``status`` is that
    of ``decide_alphabets``.
    """
    device, dtype = status.device, xs[0].dtype
    numels, aligned = tuple(x.numel() for x in xs), are_aligned(xs)
    starts = addresses(xs, device)
    limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
    tiles = tile_table(numels, TILE, device)
    window = encoder.window()
    held = _layout(len(xs), tiles.num_tiles, routes.nbytes, window is not None).carve(device)
    symbols = held.pop("symbols")
    quantized = Quantized(**held)
    if any(b.kind == "relative" for b in bounds):
        fold_ranges(starts, tile_table(numels, RANGE_TILE, device), keys, dtype, aligned)
    grids = grid_table(keys, limits, dtype)
    is_limited = has_ptx(status) and dtype != torch.float64 and dims == 0
    shapes = shapes_of(xs, dims)
    sizes = [1] * (routes.num_narrow > 0) + [2] * (routes.num_narrow < len(xs))
    for nbytes in sizes:
        _quantize_kernel[(tiles.num_tiles,)](
            starts, tiles.counts, tiles.first_tiles, tiles.owners, grids, keys, routes.places, symbols,
            quantized.extents, quantized.missing, quantized.varying, quantized.escaping, routes.streams,
            routes.num_narrow, *((0, 0) if window is None else (window.low, window.size)),
            shapes, TYPE=TYPES[dtype], ALIGNED=aligned, TILE=TILE, PART=VALUES_PER_STEP, NBYTES=nbytes,
            HAS_BOTH=len(sizes) > 1, STATIC=window is not None, DIMS=dims, num_warps=_WARPS,
            **({"maxnreg": _MAX_REGISTERS} if is_limited else {}),
        )  # fmt: skip
    decide_alphabets(tiles, quantized, grids, status, routes.streams, routes.num_narrow, window)
    # a code modulo 256, or 4096, is its symbol, rotated by the smallest code
    streams = Streams(
        symbols, routes.starts, quantized.counts, routes.capacities, quantized.alphabets,
        quantized.lows, routes.num_narrow, routes.narrow_nbytes,
        None if encoder.frequencies is None else static_table(encoder.frequencies, device),
    )  # fmt: skip
    return streams, quantized, grids
