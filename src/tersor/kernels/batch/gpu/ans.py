"""Payloads of ``ans`` for a list of tensors in Triton.

Values are read once (twice for a relative bound) and become bytes, codes modulo 256: what the bytes
mean is known as soon as all are written, and the coder's tables take it into account.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu.ans_plan import (
    HEAD_NBYTES,
    Quantized,
    decide_alphabets,
    plan_payloads,
)
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.entropy.rans.gpu.encode_streams import Streams, encode_streams, place_streams
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx, num_counts
from tersor.kernels.payload.gpu.plan import (
    CODED,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    close_payload,
)
from tersor.kernels.payload.gpu.uncoded import (
    examine_tile,
    finish_tiles,
    load_grid,
    programs_per_tensor,
)
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.quantize.gpu.finite_range import TILE as RANGE_TILE
from tersor.kernels.quantize.gpu.finite_range import fold_ranges, key_dtype
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
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, bound_table, tile_table
from tersor.kernels.runtime.workspace import Layout
from tersor.types import Bound

_TILE: Final = 4096
_WARPS: Final = 4
"""A program has 32 values per thread, whose loads are all on their way at once."""
_MAX_REGISTERS: Final = 80
"""Per thread. The tiles that are done again the careful way, few as they are, would take more, and
leave room for fewer programs: 436 MB take 135 us with 96 registers, 128 with 80."""
_VALUES_PER_STEP: Final = 1024
"""Values at a time where a tile is looked at once more."""
_ALIGNMENT: Final = 16
"""Symbols of a tensor start at a multiple of so many, so that loads of them are wide."""


@triton.jit
def _extended(low, high, other_low, other_high):
    return tl.minimum(low, other_low), tl.maximum(high, other_high)


@triton.jit
def _extent(codes, inside):
    """Return the smallest and the largest of the codes that are ``inside``."""
    low, high = tl.where(inside, codes, LARGEST_CODE), tl.where(inside, codes, SMALLEST_CODE)
    return tl.reduce((tl.min(low, axis=1), tl.max(high, axis=1)), 0, _extended)


@triton.jit
def _quantize_tile(
    address, limit, grid, target, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr
):
    """Store a tile's codes as bytes; return its smallest and largest code, its outliers, and a proof.

    The last is true only if two values are finite and differ. The tile has ``limit`` values. Four codes make one word of 32 bits, which one thread stores: single
    bytes would have to pass from thread to thread first. The last word may have bytes past the end.
    """
    word = tl.arange(0, TILE // 4)
    position = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, False)
    step, inverse, bound = grid
    codes, holds = quantize_values(values, step, inverse, bound, TYPE)
    words = target.to(tl.pointer_type(tl.int32)) + word
    joined = tl.sum((codes & 255) << (8 * tl.arange(0, 4))[None, :], axis=1)
    tl.store(words, joined, mask=4 * word < limit)
    inside = position < limit
    low, high = _extent(codes, inside)
    least, most = _extent(codes, inside & holds)
    missed = tl.sum(tl.sum((inside & ~holds).to(tl.int32), axis=1), axis=0)
    return low, high, missed, least < most


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _wider(low, high, error, other_low, other_high, other_error):
    worst = tl.maximum(error, other_error, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(low, other_low), tl.maximum(high, other_high), worst


@triton.jit
def _quantize_whole_tile(
    address, grid, target, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr
):
    """Store the codes of a whole tile as bytes, as if every value had a code.

    Returns its smallest and largest code, and whether all codes are right: if not, the tile must be
    quantized again. Looking at the largest error, and not at every one, takes half the instructions.
    """
    word = tl.arange(0, TILE // 4)
    position = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(address, position, TILE, 0.0, TYPE, ALIGNED, True)
    step, inverse, bound = grid
    shifted, errors = shifted_codes(values, step, inverse, TYPE)
    bytes_ = (shifted & 255) << (8 * tl.arange(0, 4))[None, :]
    tl.store(target.to(tl.pointer_type(tl.int32)) + word, tl.reduce(bytes_, 1, _either))
    low, high, worst = tl.reduce(tl.reduce((shifted, shifted, errors), 1, _wider), 0, _wider)
    is_right = (worst <= bound) & (low >= LEAST_SHIFTED) & (high <= MOST_SHIFTED)
    return low - SHIFT, high - SHIFT, is_right


@jit_kernel()
def _quantize_kernel(
    starts, counts, first_tiles, owners, grids, keys, places, symbols, extents, missing, varying,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program quantizes one tile to bytes and notes what ``Quantized`` says of it.

    Only a tensor whose values do not vary needs its range, and the number of its values that are not
    finite, after this, so a tile proves that its values vary, or looks at them once more.
    """
    # backwards: the values that the pass before this one read last are still in the cache
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k = tl.load(owners + tile)
    base, count = (tile - tl.load(first_tiles + k)) * TILE, tl.load(counts + k)
    address, grid = tl.load(starts + k) + base * (TYPE.primitive_bitwidth // 8), load_grid(grids, k)
    limit = tl.minimum(count - base, TILE).to(tl.int32)
    target = symbols + tl.load(places + k) + base
    low, high, missed = limit * 0, limit * 0, limit * 0
    is_done = limit < 0
    if (TYPE != F64) and (limit == TILE):
        low, high, is_done = _quantize_whole_tile(address, grid, target, TYPE, ALIGNED, TILE)
    varies = low < high
    if not is_done:
        low, high, missed, varies = _quantize_tile(
            address, limit, grid, target, TYPE, ALIGNED, TILE
        )
    specials = 0
    if not varies:
        specials = examine_tile(address, limit, keys + 2 * k, TYPE, PART)
    # places of a tile's own: thousands of programs that meet in one place take 1 ns each
    tl.store(extents + 2 * tile, low)
    tl.store(extents + 2 * tile + 1, high)
    tl.store(missing + tile, (missed.to(tl.int64) << 32) | specials)
    tl.store(varying + tile, varies.to(tl.int8))


@jit_kernel()
def _finish_kernel(
    starts, counts, first_tiles, grids, missing, plan, alphabets, lows, out, targets,
    TYPE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Program (k, p) does what is left of every p-th tile of tensor k; the first writes the heads.

    It also says where the coder's body goes.
    """
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    mode, payload = tl.load(row + MODE), out + tl.load(row + OFFSET)
    count, address = tl.load(counts + k), tl.load(starts + k)
    first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
    # running sums of the tensor's own tiles, and of nothing before them
    finish_tiles(
        payload, row, address, count, first - first, last - first, missing + first, 0,
        load_grid(grids, k), TYPE, TILE, PART,
    )  # fmt: skip
    if tl.program_id(1) == 0:
        close_payload(payload, count, row, TYPE)
        body = (payload + HEADER_NBYTES).to(tl.int64)
        if mode == CODED:
            head = body.to(tl.pointer_type(tl.int64))
            low = tl.load(lows + k).to(tl.int64) & 0xFFFFFFFF
            tl.store(head, low | (tl.load(alphabets + k).to(tl.int64) << 32))
            tl.store(head + 1, tl.full((), 0, tl.int64))
        tl.store(targets + k, tl.where(mode == CODED, body + HEAD_NBYTES, 0))


@cached_on_stream
def _symbol_places(numels: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, int]:
    """Return where the symbols of each tensor start, int64, and the room all of them take."""
    rooms = [ceil_div(numel, _ALIGNMENT) * _ALIGNMENT for numel in numels]
    places = list(accumulate(rooms, initial=0))
    return to_device_async(places[:-1], torch.int64, device), places[-1]


@lru_cache(maxsize=64)
def _layout(num_tensors: int, num_tiles: int, num_symbols: int) -> Layout:
    """Return where the symbols and the fields of ``Quantized`` lie."""
    return Layout.of(
        {
            "symbols": (torch.uint8, num_symbols),
            "extents": (torch.int32, 2 * num_tiles),
            "missing": (torch.int64, num_tiles),
            "varying": (torch.int8, num_tiles),
            "totals": (torch.int64, 2 * num_tensors),
            "counts": (torch.int64, num_tensors),
            "alphabets": (torch.int32, num_tensors),
            "lows": (torch.int32, num_tensors),
        }
    )


def _quantize(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    keys: torch.Tensor,
    status: torch.Tensor,
) -> tuple[Streams, Quantized, torch.Tensor]:
    """Quantize all tensors; return their streams, what is known of them, and their grids."""
    device, dtype = status.device, xs[0].dtype
    numels, aligned = tuple(x.numel() for x in xs), are_aligned(xs)
    starts = addresses(xs, device)
    limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
    tiles = tile_table(numels, _TILE, device)
    places, room = _symbol_places(numels, device)
    held = _layout(len(xs), tiles.num_tiles, room).carve(device)
    symbols = held.pop("symbols")
    quantized = Quantized(**held)
    if any(b.kind == "relative" for b in bounds):
        fold_ranges(starts, tile_table(numels, RANGE_TILE, device), keys, dtype, aligned)
    grids = grid_table(keys, limits, dtype)
    is_limited = has_ptx(status) and dtype != torch.float64
    _quantize_kernel[(tiles.num_tiles,)](
        starts, tiles.counts, tiles.first_tiles, tiles.owners, grids, keys, places, symbols,
        quantized.extents, quantized.missing, quantized.varying, TYPE=TYPES[dtype], ALIGNED=aligned, TILE=_TILE,
        PART=_VALUES_PER_STEP, num_warps=_WARPS,
        **({"maxnreg": _MAX_REGISTERS} if is_limited else {}),
    )  # fmt: skip
    decide_alphabets(tiles, quantized, grids, status)
    # a code modulo 256 is its symbol, rotated by the smallest code
    streams = Streams(
        symbols, places, quantized.counts, numels, quantized.alphabets, quantized.lows, len(xs)
    )
    return streams, quantized, grids


def encode_ans(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: AnsEncoder,
    with_ranges: bool = False,
) -> FusedList:
    """Encode contiguous tensors of one dtype and device into one buffer, without waiting.

    The encoder has no static table. ``with_ranges`` changes nothing: the ranges of relative bounds are
    found in any case. A second pass is needed where codes span more than 256.
    """
    del encoder, with_ranges
    device, dtype = xs[0].device, xs[0].dtype
    numels = tuple(x.numel() for x in xs)
    status = torch.empty(len(xs), dtype=torch.int32, device=device)
    with torch.cuda.device_of(xs[0]):
        # what must be 0 at first, zeroed in one launch
        parts = (2 * len(xs), num_counts(len(xs), 0))
        zeroed = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        keys, counts = zeroed.split_with_sizes(parts)
        keys = keys.view(key_dtype(dtype))
        streams, quantized, grids = _quantize(xs, bounds, keys, status)
        encoded = encode_streams(streams, counts)
        tiles = tile_table(numels, _TILE, device)
        plan, sizes = plan_payloads(tiles, quantized, encoded.nbytes, keys, grids, dtype)
        capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in numels)
        out = torch.empty(capacity, dtype=torch.uint8, device=device)
        targets = torch.empty(len(xs), dtype=torch.int64, device=device)
        _finish_kernel[(len(xs), programs_per_tensor(numels, _TILE, 4))](
            addresses(xs, device), tiles.counts, tiles.first_tiles, grids, quantized.missing, plan,
            quantized.alphabets, quantized.lows, out, targets, TYPE=TYPES[dtype], TILE=_TILE,
            PART=_VALUES_PER_STEP, num_warps=4,
        )  # fmt: skip
        place_streams(streams, encoded, targets)
    is_relative = any(b.kind == "relative" for b in bounds)
    return FusedList(sizes, out, status, keys[: 2 * len(xs)] if is_relative else None)
