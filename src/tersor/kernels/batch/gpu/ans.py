"""Payloads of ``ans`` for a list of tensors in Triton.

Values are read once (twice for a relative bound) and become symbols (``ans_quantize.py``), which are coded to
words (``entropy/rans/gpu``); when the sizes of these are known, payloads are planned, and then written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu import ans_quantize
from tersor.kernels.batch.gpu.ans_plan import (
    ESCAPE_NBYTES,
    HEAD_NBYTES,
    Quantized,
    WideTensors,
    plan_payloads,
)
from tersor.kernels.batch.gpu.ans_quantize import escape_window
from tersor.kernels.batch.gpu.ans_wide import Routes, choose_windows, routes_of, wide_tensors
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    EncodedStreams,
    Streams,
    count_symbols,
    encode_streams,
    place_streams,
)
from tersor.kernels.entropy.symbols.alphabet import NARROW, Window
from tersor.kernels.entropy.symbols.gpu.histogram import num_counts
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
    finish_tiles,
    load_grid,
    programs_per_tensor,
)
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.predict.gpu import load_shape, residual_codes
from tersor.kernels.quantize.gpu.finite_range import key_dtype
from tersor.kernels.quantize.gpu.values import load_values, quantize_values
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    TileTable,
    addresses,
    before_tile,
    tile_table,
)
from tersor.types import Bound


@triton.jit
def _put_escapes(
    head, total, address, count, first, last, ends, grid, window, shape, TYPE: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Write behind ``head`` what escapes a static table in every so many tiles of ``[first, last)``.

    ``total`` codes escape in all of them; ``ends`` are running sums over the tiles. Tiles with escapes are
    quantized once more.
    """
    positions = (head + 2).to(tl.pointer_type(tl.int32))
    for tile in range(first + tl.program_id(1), last, tl.num_programs(1)):
        rank = before_tile(ends, first, tile)
        if tl.load(ends + tile) > rank:
            for part in range(0, TILE, PART):
                position = (tile - first) * TILE + part + tl.arange(0, PART)
                if DIMS == 0:
                    values = load_values(address, position, count, 0.0, TYPE, False, False)
                    codes, _ = quantize_values(values, grid[0], grid[1], grid[2], TYPE)
                else:
                    codes, _, _ = residual_codes(
                        address, position.to(tl.int32), count.to(tl.int32), shape, grid, TYPE,
                        DIMS if DIMS > 1 else 2,
                    )  # fmt: skip
                _, escapes = escape_window(codes, window)
                escapes = escapes & (position < count)
                place = rank + tl.cumsum(escapes.to(tl.int64), axis=0) - 1
                # values that have changed since they were counted must not end behind the payload
                is_put = escapes & (place < total)
                tl.store(positions + place, position.to(tl.int32), mask=is_put)
                tl.store(positions + total + place, codes, mask=is_put)
                rank += tl.sum(escapes.to(tl.int64), axis=0)


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


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size", "room"])
def _finish_kernel(
    starts, counts, first_tiles, grids, missing, escaping, totals, plan, alphabets, lows, out,
    targets, streams, num_narrow, num_escapes, escapes, places, window_low, window_size, shapes,
    room, TYPE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr, HAS_WIDE: tl.constexpr,
    STATIC: tl.constexpr, DIMS: tl.constexpr,
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
        if STATIC and mode == CODED:
            num = tl.load(totals + 2 * tl.num_programs(0) + k)
            if num > 0:
                _put_escapes(
                    head, num, address, count, first, last, escaping, load_grid(grids, k),
                    (window_low, window_size), load_shape(shapes, k) if DIMS > 0 else (1, 1, 1), TYPE,
                    TILE, PART, DIMS,
                )  # fmt: skip
        if tl.program_id(1) == 0:
            close_payload(payload, count, row, TYPE)
            if mode == CODED:
                low = tl.load(lows + stream).to(tl.int64) & 0xFFFFFFFF
                tl.store(head, low | (tl.load(alphabets + stream).to(tl.int64) << 32))
                tl.store(head + 1, num)
                target = body + HEAD_NBYTES + ESCAPE_NBYTES * num
    if tl.program_id(1) == 0:
        tl.store(targets + stream, target)


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
        dims: axes that predict; 0 for none.
        window: of the encoder's static table; None if there is none.
        wide: None if all streams are of bytes, or the table is static.
        encoded: the coded streams.
        plan: of the payloads.
    """

    xs: Sequence[torch.Tensor]
    tiles: TileTable
    routes: Routes
    grids: torch.Tensor
    quantized: Quantized
    streams: Streams
    dims: int
    window: Window | None
    wide: WideTensors | None
    encoded: EncodedStreams
    plan: torch.Tensor

    def write(self, state: None, nbytes: int) -> torch.Tensor:
        """Write the payloads that fit into new memory of ``nbytes`` bytes, and return it."""
        del state
        device, numels = self.grids.device, tuple(x.numel() for x in self.xs)
        quantized, tiles, wide, window = self.quantized, self.tiles, self.wide, self.window
        with torch.cuda.device_of(self.grids):
            out = torch.empty(nbytes, dtype=torch.uint8, device=device)
            targets = torch.empty(len(self.xs), dtype=torch.int64, device=device)
            _finish_kernel[(len(self.xs), programs_per_tensor(numels, ans_quantize.TILE, 4))](
                addresses(self.xs, device), tiles.counts, tiles.first_tiles, self.grids,
                quantized.missing, quantized.escaping, quantized.totals, self.plan,
                quantized.alphabets, quantized.lows, out, targets, self.routes.streams,
                self.routes.num_narrow,
                *((None,) * 3 if wide is None else (wide.num_escapes, wide.escapes, wide.places)),
                *((0, 0) if window is None else (window.low, window.size)),
                ans_quantize.shapes_of(self.xs, self.dims), nbytes, TYPE=TYPES[self.xs[0].dtype], TILE=ans_quantize.TILE,
                PART=ans_quantize.VALUES_PER_STEP, HAS_WIDE=wide is not None,
                STATIC=window is not None, DIMS=self.dims, num_warps=4,
            )  # fmt: skip
            place_streams(self.streams, self.encoded, targets)
        return out


def encode_ans(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: AnsEncoder,
    with_ranges: bool = False,
    are_wide: bool = False,
    dims: int = 0,
) -> FusedList:
    """Encode contiguous tensors of one dtype and device, of which ``dims`` axes predict, without waiting.

    ``with_ranges`` changes nothing: the ranges of relative bounds are found in any case. A second pass is
    needed where codes span more than 256, or more than 4096 in a tensor of ``wide_tensors``; with ``are_wide``
    all are taken for such tensors. With a static table none needs it.
    """
    del with_ranges
    device, dtype = xs[0].device, xs[0].dtype
    numels = tuple(x.numel() for x in xs)
    status = torch.empty(len(xs), dtype=torch.int32, device=device)
    with torch.cuda.device_of(xs[0]):
        window = encoder.window()
        if window is None:
            wide_ones = (
                frozenset(range(len(xs))) if are_wide else wide_tensors(numels, bounds, dims)
            )
        else:
            wide_ones = frozenset(range(len(xs)) if window.alphabet > NARROW else ())
        routes = routes_of(numels, wide_ones, device)
        num_wide = len(xs) - routes.num_narrow
        # what must be 0 at first, zeroed in one launch
        parts = (2 * len(xs), num_counts(routes.num_narrow, num_wide) if window is None else 0)
        zeroed = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        keys, counts = zeroed.split_with_sizes(parts)
        keys = keys.view(key_dtype(dtype))
        streams, quantized, grids = ans_quantize.quantize(
            xs, bounds, encoder, dims, routes, keys, status
        )
        wide = None
        if window is None:
            count_symbols(streams, counts)
            wide = choose_windows(routes, streams, counts, quantized) if num_wide else None
        encoded = encode_streams(streams, counts if window is None else None)
        tiles = tile_table(numels, ans_quantize.TILE, device)
        plan, sizes = plan_payloads(tiles, quantized, encoded.nbytes, keys, grids, dtype, wide)
    is_relative = any(b.kind == "relative" for b in bounds)
    coded = _Coded(xs, tiles, routes, grids, quantized, streams, dims, window, wide, encoded, plan)
    capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in numels)
    found = keys[: 2 * len(xs)] if is_relative else None
    needed = status if window is None else None
    return FusedList(sizes, Unwritten(capacity, xs, None, coded.write), needed, found)
