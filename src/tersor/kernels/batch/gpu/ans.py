"""Payloads of ``ans`` for a list of tensors in Triton.

Values are read once (twice for a relative bound) and become symbols (``ans_quantize.py``), which are coded to words
(``entropy/rans/gpu``). Once the sizes of the words are known, payloads are planned, and then written. For large
lists neither symbols nor words are kept in memory (``ans_values.py``): values are read two more times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

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
from tersor.kernels.batch.gpu.ans_quantize import Task
from tersor.kernels.batch.gpu.ans_tile import escape_window
from tersor.kernels.batch.gpu.ans_values import measure_values
from tersor.kernels.batch.gpu.ans_wide import (
    choose_windows,
    choose_windows_alone,
    routes_of,
    wide_tensors,
)
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    block_of,
    count_symbols,
    encode_streams,
    place_streams,
)
from tersor.kernels.entropy.symbols.alphabet import NARROW
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
from tersor.kernels.runtime.gpu.tiles import sum_before_in_tensor
from tersor.kernels.runtime.gpu.zeros import clear
from tersor.kernels.runtime.recording import working_tensor
from tersor.kernels.runtime.sparing import is_sparing
from tersor.types import Bound

MOST_HELD_NBYTES: Final = 256 << 20
"""Largest list whose symbols and words are kept in memory, which takes half of its bytes or more. Without them,
256 MiB take an H200 618 us instead of 415."""
_NARROW = tl.constexpr(NARROW)


@triton.jit
def _put_escapes(
    head, total, address, count, first, last, tile_values, ends, grid, window, shape,
    TYPE: tl.constexpr, PART: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Write the codes that escape a window behind ``head``, for this program's share of the tiles ``[first, last)``.

    Tiles, or blocks, have ``tile_values`` values each; ``total`` codes escape in all of them. ``ends`` are inclusive
    prefix sums of the escapes of the tiles. Tiles with escapes are quantized again.
    """
    positions = (head + 2).to(tl.pointer_type(tl.int32))
    for tile in range(first + tl.program_id(1), last, tl.num_programs(1)):
        rank = sum_before_in_tensor(ends, first, tile)
        if tl.load(ends + tile) > rank:
            for part in range(0, tile_values, PART):
                position = (tile - first) * tile_values + part + tl.arange(0, PART)
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
                # values that have changed since they were counted must not be written past the payload
                is_put = escapes & (place < total)
                tl.store(positions + place, position.to(tl.int32), mask=is_put)
                tl.store(positions + total + place, codes, mask=is_put)
                rank += tl.sum(escapes.to(tl.int64), axis=0)


@triton.jit
def _num_escapes(stream, num_narrow, num_escapes):
    """Return how many codes of a stream escape its window; 0 for a stream of bytes."""
    return tl.load(num_escapes + stream - num_narrow, mask=stream >= num_narrow, other=0)


@triton.jit
def _copy_escapes(head, num, stream, num_narrow, escapes, places, LANES: tl.constexpr):
    """Copy this program's share of the ``num`` escapes of a stream behind ``head``."""
    place = tl.load(places + stream - num_narrow, mask=num > 0, other=0)
    source = escapes.to(tl.pointer_type(tl.int64)) + place
    for start in range(tl.program_id(1) * LANES, num, tl.num_programs(1) * LANES):
        i = start + tl.arange(0, LANES)
        tl.store(head + 2 + i, tl.load(source + i, mask=i < num, other=0), mask=i < num)


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size", "room"])
def _finish_kernel(
    starts, counts, first_tiles, grids, uncoded, escaping, totals, plan, alphabets, lows, out,
    targets, streams, num_narrow, num_escapes, escapes, places, firsts, window_low, window_size,
    shapes, room: tl.int64, TYPE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
    HAS_WIDE: tl.constexpr, ARE_HELD: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Program (k, p) finishes every p-th tile of tensor k; the first program writes the heads.

    It also stores the address for the coder's body, 0 if the payload does not fit. ``ARE_HELD`` says that the
    escapes of wide streams are in memory; otherwise ``escaping`` has prefix sums over their blocks.
    """
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    stream = tl.load(streams + k) if HAS_WIDE else k
    target = tl.full((), 0, tl.int64)
    if fits(row, room):
        mode, payload = tl.load(row + MODE), out + tl.load(row + OFFSET)
        count, address = tl.load(counts + k), tl.load(starts + k)
        first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
        grid, shape = load_grid(grids, k), load_shape(shapes, k) if DIMS > 0 else (1, 1, 1)
        # the prefix sums cover the tensor's own tiles only
        finish_tiles(
            payload, row, address, count, first - first, last - first, uncoded + first, 0, grid,
            TYPE, TILE, PART,
        )  # fmt: skip
        body = (payload + HEADER_NBYTES).to(tl.int64)
        head = body.to(tl.pointer_type(tl.int64))
        num = tl.full((), 0, tl.int64)
        low = tl.load(lows + stream)
        if HAS_WIDE and mode == CODED:
            num = _num_escapes(stream, num_narrow, num_escapes)
            if ARE_HELD:
                _copy_escapes(head, num, stream, num_narrow, escapes, places, 128)
            elif num > 0:
                begin, block = tl.load(firsts + stream), block_of(count)
                _put_escapes(
                    head, num, address, count, begin, begin + (count + block - 1) // block, block,
                    escaping, grid, (low, _NARROW - 1), shape, TYPE, PART, DIMS,
                )  # fmt: skip
        if STATIC and mode == CODED:
            num = tl.load(totals + 2 * tl.num_programs(0) + k)
            if num > 0:
                _put_escapes(
                    head, num, address, count, first, last, TILE, escaping, grid,
                    (window_low, window_size), shape, TYPE, PART, DIMS,
                )  # fmt: skip
        if tl.program_id(1) == 0:
            close_payload(payload, count, row, TYPE)
            if mode == CODED:
                alphabet = tl.load(alphabets + stream).to(tl.int64)
                tl.store(head, (low.to(tl.int64) & 0xFFFFFFFF) | (alphabet << 32))
                tl.store(head + 1, num)
                target = body + HEAD_NBYTES + ESCAPE_NBYTES * num
    if tl.program_id(1) == 0:
        tl.store(targets + stream, target)


@dataclass(frozen=True, slots=True)
class _Coded:
    """A list whose bodies are coded or measured.

    Attributes:
        task: the list.
        quantized: facts about its tensors.
        wide: facts about wide streams; None if all streams are of bytes, or the table is static.
        escaping: prefix sums of the escapes, over tiles for a static table, else over blocks of wide streams.
        firsts: int64 [streams], the first block of each stream, if ``escaping`` is over blocks.
        nbytes: int64 [streams], sizes of the bodies.
        put: writes the bodies to addresses, int64 [streams], skipping those that are 0.
    """

    task: Task
    quantized: Quantized
    wide: WideTensors | None
    escaping: torch.Tensor
    firsts: torch.Tensor | None
    nbytes: torch.Tensor
    put: Callable[[torch.Tensor], None]

    def write(self, plan: torch.Tensor, nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory."""
        task, quantized, wide = self.task, self.quantized, self.wide
        xs, tiles, routes, device = task.xs, task.tiles, task.routes, plan.device
        numels = tuple(x.numel() for x in xs)
        with torch.cuda.device_of(plan):
            out = torch.empty(nbytes, dtype=torch.uint8, device=device)
            targets = working_tensor((len(xs),), torch.int64, device)
            _finish_kernel[(len(xs), programs_per_tensor(numels, ans_quantize.TILE, 4))](
                task.starts, tiles.counts, tiles.first_tiles, task.grids,
                quantized.uncoded, self.escaping, quantized.totals, plan, quantized.alphabets,
                quantized.lows, out, targets, routes.streams, routes.num_narrow,
                *((None,) * 3 if wide is None else (wide.num_escapes, wide.escapes, wide.places)),
                self.firsts, *task.window_numbers, ans_quantize.shapes_of(xs, task.dims), nbytes,
                TYPE=TYPES[xs[0].dtype], TILE=ans_quantize.TILE, PART=ans_quantize.VALUES_PER_STEP,
                HAS_WIDE=wide is not None, ARE_HELD=self.firsts is None,
                STATIC=task.window is not None, DIMS=task.dims, num_warps=4,
            )  # fmt: skip
            self.put(targets)
        return out


def _code_symbols(task: Task, counts: torch.Tensor) -> _Coded:
    """Quantize to symbols in memory and code these to words in memory, which reads the values least often."""
    streams, quantized = ans_quantize.quantize(task)
    if task.window is not None:
        encoded, wide = encode_streams(streams), None
    else:
        count_symbols(streams, counts)
        has_wide = streams.num_wide > 0
        wide = choose_windows(task.routes, streams, counts, quantized) if has_wide else None
        encoded = encode_streams(streams, counts)
    put = partial(place_streams, streams, encoded)
    return _Coded(task, quantized, wide, quantized.escaping, None, encoded.nbytes, put)


def _code_values(task: Task, counts: torch.Tensor) -> _Coded:
    """Count and measure symbols without keeping them, which takes little memory."""
    quantized, routes, wide = ans_quantize.count_in_pieces(task, counts), task.routes, None
    if task.window is None and routes.num_narrow < len(task.xs):
        num_escapes = choose_windows_alone(routes, counts, quantized)
        wide = WideTensors(routes.streams, routes.num_narrow, num_escapes, None, None)
    measured = measure_values(task, quantized, counts, None if wide is None else wide.num_escapes)
    escaping = quantized.escaping if wide is None else measured.escaping
    firsts, nbytes = measured.blocks.firsts, measured.nbytes
    return _Coded(task, quantized, wide, escaping, firsts, nbytes, measured.write)


def _wide_ones(
    xs: Sequence[torch.Tensor], bounds: Sequence[Bound], encoder: AnsEncoder, are_wide: bool, dims: int
) -> frozenset[int]:  # fmt: skip
    """Return the tensors that get int16 symbols."""
    window = encoder.window()
    if window is None and not are_wide:
        return wide_tensors([x.numel() for x in xs], bounds, dims)
    is_wide = window is None or window.alphabet > NARROW
    return frozenset(range(len(xs)) if is_wide else ())


def encode_ans(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: AnsEncoder,
    with_ranges: bool = False,
    are_wide: bool = False,
    dims: int = 0,
) -> FusedList:
    """Encode contiguous tensors of one dtype and device, predicted along ``dims`` axes, without waiting.

    ``with_ranges`` has no effect: the ranges of relative bounds are always computed. A tensor needs a second pass
    if its codes span more than 256 values, or more than 4096 if ``wide_tensors`` returns it; ``are_wide`` treats
    all tensors as wide. With a static table, no tensor needs a second pass.

    Lists above ``MOST_HELD_NBYTES``, and all lists inside ``sparing_memory``, take a workspace of a fourteenth of
    their bytes. Other lists take up to 1.5 times their bytes, and less time.
    """
    del with_ranges
    device, dtype = xs[0].device, xs[0].dtype
    numels = tuple(x.numel() for x in xs)
    with torch.cuda.device_of(xs[0]):
        routes = routes_of(numels, _wide_ones(xs, bounds, encoder, are_wide, dims), device)
        is_static = encoder.frequencies is not None
        num_wide = len(xs) - routes.num_narrow
        # everything that must start at 0, cleared in one launch
        parts = (2 * len(xs), 0 if is_static else num_counts(routes.num_narrow, num_wide))
        has_ranges = any(b.kind == "relative" for b in bounds)
        # the ranges of relative bounds are a result, which working memory must not hold
        new = torch.empty if has_ranges else working_tensor
        zeroed = new((sum(parts),), dtype=torch.int64, device=device)
        clear(zeroed)
        keys, counts = zeroed.split_with_sizes(parts)
        keys = keys.view(key_dtype(dtype))
        task = Task.of(xs, bounds, encoder, dims, routes, keys)
        is_held = sum(x.nbytes for x in xs) <= MOST_HELD_NBYTES and not is_sparing()
        coded = (_code_symbols if is_held else _code_values)(task, counts)
        plan, sizes = plan_payloads(
            task.tiles, coded.quantized, coded.nbytes, keys, task.grids, dtype, coded.wide
        )
    capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in numels)
    found = keys[: 2 * len(xs)] if has_ranges else None
    unwritten = Unwritten(capacity, xs, None, lambda _, nbytes: coded.write(plan, nbytes))
    return FusedList(sizes, unwritten, None if is_static else task.status, found)
