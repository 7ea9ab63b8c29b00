"""Payloads of ``ans`` for a list of tensors in Triton.

Values are read once (twice for a relative bound) and become bytes, codes modulo 256: what the bytes
mean is known as soon as all are written, and the coder's tables take it into account. Where a bound says
that there are more codes they become int16, codes modulo 4096 (``ans_wide.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu.ans_plan import (
    ESCAPE_NBYTES,
    HEAD_NBYTES,
    Quantized,
    WideTensors,
    decide_alphabets,
    plan_payloads,
)
from tersor.kernels.batch.gpu.ans_wide import Routes, choose_windows, routes_of, wide_tensors
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    EncodedStreams,
    Streams,
    count_symbols,
    encode_streams,
    place_streams,
)
from tersor.kernels.entropy.symbols.alphabet import WIDE
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx, num_counts
from tersor.kernels.payload.gpu.plan import (
    CODED,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    close_payload,
    fits,
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
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    TileTable,
    addresses,
    are_aligned,
    bound_table,
    tile_table,
)
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
_WIDE = tl.constexpr(WIDE)


@triton.jit
def _extended(low, high, other_low, other_high):
    return tl.minimum(low, other_low), tl.maximum(high, other_high)


@triton.jit
def _extent(codes, inside):
    """Return the smallest and the largest of the codes that are ``inside``."""
    low, high = tl.where(inside, codes, LARGEST_CODE), tl.where(inside, codes, SMALLEST_CODE)
    return tl.reduce((tl.min(low, axis=1), tl.max(high, axis=1)), 0, _extended)


@triton.jit
def _fields(codes, NBYTES: tl.constexpr):
    """Return codes, four of which make one word, modulo 256 or 4096 and at their places in it."""
    if NBYTES == 1:
        return (codes & 255) << (8 * tl.arange(0, 4))[None, :]
    else:
        return (codes & (_WIDE - 1)).to(tl.int64) << (16 * tl.arange(0, 4))[None, :]


@triton.jit
def _quantize_tile(
    address, limit, grid, target, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    NBYTES: tl.constexpr,
):  # fmt: skip
    """Store a tile's codes; return its smallest and largest code, its outliers, and a proof.

    The last is true only if two values are finite and differ. The tile has ``limit`` values. Four codes make one word, which one thread stores: single
    codes would have to pass from thread to thread first. The last word may have codes past the end.
    """
    word = tl.arange(0, TILE // 4)
    position = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(address, position, limit, 0.0, TYPE, ALIGNED, False)
    step, inverse, bound = grid
    codes, holds = quantize_values(values, step, inverse, bound, TYPE)
    integer: tl.constexpr = tl.int32 if NBYTES == 1 else tl.int64
    words = target.to(tl.pointer_type(integer)) + word
    joined = tl.sum(_fields(codes, NBYTES), axis=1)
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
    address, grid, target, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    NBYTES: tl.constexpr,
):  # fmt: skip
    """Store the codes of a whole tile, as if every value had a code.

    Returns its smallest and largest code, and whether all codes are right: if not, the tile must be
    quantized again. Looking at the largest error, and not at every one, takes half the instructions.
    """
    word = tl.arange(0, TILE // 4)
    position = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(address, position, TILE, 0.0, TYPE, ALIGNED, True)
    step, inverse, bound = grid
    shifted, errors = shifted_codes(values, step, inverse, TYPE)
    fields = _fields(shifted, NBYTES)
    tl.store(target.to(tl.pointer_type(fields.dtype)) + word, tl.reduce(fields, 1, _either))
    low, high, worst = tl.reduce(tl.reduce((shifted, shifted, errors), 1, _wider), 0, _wider)
    is_right = (worst <= bound) & (low >= LEAST_SHIFTED) & (high <= MOST_SHIFTED)
    return low - SHIFT, high - SHIFT, is_right


@jit_kernel(do_not_specialize=["num_narrow"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, grids, keys, places, symbols, extents, missing, varying,
    streams, num_narrow, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, NBYTES: tl.constexpr, HAS_BOTH: tl.constexpr,
):  # fmt: skip
    """One program quantizes one tile to codes of ``NBYTES`` and notes what ``Quantized`` says of it.

    ``HAS_BOTH`` says that other tensors have codes of another size: their tiles are left alone.

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
    low, high, missed = limit * 0, limit * 0, limit * 0
    is_done = limit < 0
    if (TYPE != F64) and (limit == TILE):
        low, high, is_done = _quantize_whole_tile(
            address, grid, target, TYPE, ALIGNED, TILE, NBYTES
        )
    varies = low < high
    if not is_done:
        low, high, missed, varies = _quantize_tile(
            address, limit, grid, target, TYPE, ALIGNED, TILE, NBYTES
        )
    specials = 0
    if not varies:
        specials = examine_tile(address, limit, keys + 2 * k, TYPE, PART)
    # places of a tile's own: thousands of programs that meet in one place take 1 ns each
    tl.store(extents + 2 * tile, low)
    tl.store(extents + 2 * tile + 1, high)
    tl.store(missing + tile, (missed.to(tl.int64) << 32) | specials)
    tl.store(varying + tile, varies.to(tl.int8))


@triton.jit
def _copy_escapes(head, stream, num_narrow, num_escapes, escapes, places, LANES: tl.constexpr):
    """Copy every so many runs of the escapes of a stream behind ``head``; return their number."""
    is_wide = stream >= num_narrow
    num = tl.load(num_escapes + stream - num_narrow, mask=is_wide, other=0)
    place = tl.load(places + stream - num_narrow, mask=is_wide, other=0)
    source = escapes.to(tl.pointer_type(tl.int64)) + place
    for start in range(tl.program_id(1) * LANES, num, tl.num_programs(1) * LANES):
        i = start + tl.arange(0, LANES)
        tl.store(head + 2 + i, tl.load(source + i, mask=i < num, other=0), mask=i < num)
    return num


@jit_kernel(do_not_specialize=["num_narrow", "room"])
def _finish_kernel(
    starts, counts, first_tiles, grids, missing, plan, alphabets, lows, out, targets, streams,
    num_narrow, num_escapes, escapes, places, room, TYPE: tl.constexpr, TILE: tl.constexpr,
    PART: tl.constexpr, HAS_WIDE: tl.constexpr,
):  # fmt: skip
    """Program (k, p) does what is left of every p-th tile of tensor k; the first writes the heads.

    It also says where the coder's body goes, which is nowhere if the payload does not fit.
    """
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    stream = tl.load(streams + k) if HAS_WIDE else k
    target = tl.full((), 0, tl.int64)
    if fits(row, room):
        mode, payload = tl.load(row + MODE), out + tl.load(row + OFFSET)
        count, address = tl.load(counts + k), tl.load(starts + k)
        first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
        # running sums of the tensor's own tiles, and of nothing before them
        finish_tiles(
            payload, row, address, count, first - first, last - first, missing + first, 0,
            load_grid(grids, k), TYPE, TILE, PART,
        )  # fmt: skip
        body = (payload + HEADER_NBYTES).to(tl.int64)
        head = body.to(tl.pointer_type(tl.int64))
        num = tl.full((), 0, tl.int64)
        if HAS_WIDE and mode == CODED:
            num = _copy_escapes(head, stream, num_narrow, num_escapes, escapes, places, 128)
        if tl.program_id(1) == 0:
            close_payload(payload, count, row, TYPE)
            if mode == CODED:
                low = tl.load(lows + stream).to(tl.int64) & 0xFFFFFFFF
                tl.store(head, low | (tl.load(alphabets + stream).to(tl.int64) << 32))
                tl.store(head + 1, num)
                target = body + HEAD_NBYTES + ESCAPE_NBYTES * num
    if tl.program_id(1) == 0:
        tl.store(targets + stream, target)


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
    routes: Routes,
    keys: torch.Tensor,
    status: torch.Tensor,
) -> tuple[Streams, Quantized, torch.Tensor]:
    """Quantize all tensors; return their streams, what is known of them, and their grids."""
    device, dtype = status.device, xs[0].dtype
    numels, aligned = tuple(x.numel() for x in xs), are_aligned(xs)
    starts = addresses(xs, device)
    limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
    tiles = tile_table(numels, _TILE, device)
    held = _layout(len(xs), tiles.num_tiles, routes.nbytes).carve(device)
    symbols = held.pop("symbols")
    quantized = Quantized(**held)
    if any(b.kind == "relative" for b in bounds):
        fold_ranges(starts, tile_table(numels, RANGE_TILE, device), keys, dtype, aligned)
    grids = grid_table(keys, limits, dtype)
    is_limited = has_ptx(status) and dtype != torch.float64
    sizes = [1] * (routes.num_narrow > 0) + [2] * (routes.num_narrow < len(xs))
    for nbytes in sizes:
        _quantize_kernel[(tiles.num_tiles,)](
            starts, tiles.counts, tiles.first_tiles, tiles.owners, grids, keys, routes.places, symbols,
            quantized.extents, quantized.missing, quantized.varying, routes.streams,
            routes.num_narrow, TYPE=TYPES[dtype], ALIGNED=aligned, TILE=_TILE, PART=_VALUES_PER_STEP,
            NBYTES=nbytes, HAS_BOTH=len(sizes) > 1, num_warps=_WARPS,
            **({"maxnreg": _MAX_REGISTERS} if is_limited else {}),
        )  # fmt: skip
    decide_alphabets(tiles, quantized, grids, status, routes.streams, routes.num_narrow)
    # a code modulo 256, or 4096, is its symbol, rotated by the smallest code
    streams = Streams(
        symbols, routes.starts, quantized.counts, routes.capacities, quantized.alphabets,
        quantized.lows, routes.num_narrow, routes.narrow_nbytes,
    )  # fmt: skip
    return streams, quantized, grids


@dataclass(frozen=True, slots=True)
class _Coded:
    """A list whose bodies are coded and whose payloads are decided.

    Attributes:
        xs: held until their payloads are written, as kernels know only their addresses.
        tiles: of the list.
        routes: likewise.
        grids: of the tensors.
        quantized: what is known of them.
        streams: their symbols.
        wide: None if all streams are of bytes.
        encoded: the coded streams.
        plan: of the payloads.
    """

    xs: Sequence[torch.Tensor]
    tiles: TileTable
    routes: Routes
    grids: torch.Tensor
    quantized: Quantized
    streams: Streams
    wide: WideTensors | None
    encoded: EncodedStreams
    plan: torch.Tensor

    def write(self, state: None, nbytes: int) -> torch.Tensor:
        """Write the payloads that fit into new memory of ``nbytes`` bytes, and return it."""
        del state
        device, numels = self.grids.device, tuple(x.numel() for x in self.xs)
        quantized, tiles, wide = self.quantized, self.tiles, self.wide
        with torch.cuda.device_of(self.grids):
            out = torch.empty(nbytes, dtype=torch.uint8, device=device)
            targets = torch.empty(len(self.xs), dtype=torch.int64, device=device)
            _finish_kernel[(len(self.xs), programs_per_tensor(numels, _TILE, 4))](
                addresses(self.xs, device), tiles.counts, tiles.first_tiles, self.grids,
                quantized.missing, self.plan, quantized.alphabets, quantized.lows, out, targets,
                self.routes.streams, self.routes.num_narrow,
                *((None,) * 3 if wide is None else (wide.num_escapes, wide.escapes, wide.places)),
                nbytes, TYPE=TYPES[self.xs[0].dtype], TILE=_TILE, PART=_VALUES_PER_STEP,
                HAS_WIDE=wide is not None, num_warps=4,
            )  # fmt: skip
            place_streams(self.streams, self.encoded, targets)
        return out


def encode_ans(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: AnsEncoder,
    with_ranges: bool = False,
    are_wide: bool = False,
) -> FusedList:
    """Encode contiguous tensors of one dtype and device, without waiting.

    The encoder has no static table. ``with_ranges`` changes nothing: the ranges of relative bounds are
    found in any case. A second pass is needed where codes span more than 256, or more than 4096 in a
    tensor of ``wide_tensors``; with ``are_wide`` all are taken for such tensors.
    """
    del encoder, with_ranges
    device, dtype = xs[0].device, xs[0].dtype
    numels = tuple(x.numel() for x in xs)
    status = torch.empty(len(xs), dtype=torch.int32, device=device)
    with torch.cuda.device_of(xs[0]):
        wide_ones = frozenset(range(len(xs))) if are_wide else wide_tensors(numels, bounds)
        routes = routes_of(numels, wide_ones, device)
        num_wide = len(xs) - routes.num_narrow
        # what must be 0 at first, zeroed in one launch
        parts = (2 * len(xs), num_counts(routes.num_narrow, num_wide))
        zeroed = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        keys, counts = zeroed.split_with_sizes(parts)
        keys = keys.view(key_dtype(dtype))
        streams, quantized, grids = _quantize(xs, bounds, routes, keys, status)
        count_symbols(streams, counts)
        wide = choose_windows(routes, streams, counts, quantized) if num_wide else None
        encoded = encode_streams(streams, counts)
        tiles = tile_table(numels, _TILE, device)
        plan, sizes = plan_payloads(tiles, quantized, encoded.nbytes, keys, grids, dtype, wide)
    is_relative = any(b.kind == "relative" for b in bounds)
    coded = _Coded(xs, tiles, routes, grids, quantized, streams, wide, encoded, plan)
    capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in numels)
    found = keys[: 2 * len(xs)] if is_relative else None
    return FusedList(sizes, Unwritten(capacity, xs, None, coded.write), status, found)
