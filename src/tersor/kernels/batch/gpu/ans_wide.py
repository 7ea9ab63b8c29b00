"""Tensors of ``ans`` with more than 256 codes, in Triton: their selection, windows and escapes.

Their codes are stored in int16, modulo 4096. The counts of codes decide which window of codes gets symbols, as in
``entropy.symbols.reference.choose_window``, and the coder's table maps codes to symbols. Escapes are collected
before the coder overwrites the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.gpu.ans_plan import Quantized, WideTensors, large_tensors
from tersor.kernels.entropy.rans.gpu.encode_streams import Streams
from tersor.kernels.entropy.symbols.alphabet import (
    ESCAPE_NBYTES,
    NARROW,
    WIDE,
    WIDE_TABLE_NBYTES,
    WIDE_VALUES_PER_BYTE,
)
from tersor.kernels.entropy.symbols.gpu.histogram import table_start
from tersor.kernels.payload.gpu.uncoded import programs_per_tensor
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.recording import working_tensor
from tersor.kernels.runtime.workspace import Layout
from tersor.types import Bound

_ALIGNMENT: Final = 16
"""The symbols of a tensor start at a multiple of this many bytes, so that their loads are wide."""
_NARROW, _WIDE, _ESCAPE_NBYTES, _TABLE_NBYTES, _VALUES_PER_BYTE = (
    tl.constexpr(number)
    for number in (NARROW, WIDE, ESCAPE_NBYTES, WIDE_TABLE_NBYTES, WIDE_VALUES_PER_BYTE)
)
_SYMBOLS_PER_STEP: Final = 1024
"""Symbols that one step of the search for escapes reads."""
_MOST_RUNS: Final = 1024
"""Most runs that a stream is divided into for that search; a power of two."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The mapping of tensors to streams, and where their codes lie.

    Attributes:
        streams: int32 [tensors], the stream of each tensor; streams of bytes come first.
        places: int64 [tensors], the byte at which the codes of each tensor start.
        starts: int64 [streams], the byte at which the codes of each stream start.
        tensors: int32 [streams], the tensor of each stream.
        capacities: number of values of each stream.
        num_narrow: number of streams of bytes.
        narrow_nbytes: end of the codes of the last stream of bytes.
        nbytes: end of all codes.
    """

    streams: torch.Tensor
    places: torch.Tensor
    starts: torch.Tensor
    tensors: torch.Tensor
    capacities: tuple[int, ...]
    num_narrow: int
    narrow_nbytes: int
    nbytes: int


def wide_tensors(numels: Sequence[int], bounds: Sequence[Bound], dims: int = 0) -> frozenset[int]:
    """Return the large tensors whose codes are expected to span more than 256 and at most 4096 values.

    The estimate uses relative bounds: a range has about ``1 / (2 * bound)`` levels, up to twice as many in float16
    and bfloat16. A wrong estimate, due to few values or to outliers, costs time but no byte. With ``dims``
    predicting axes, residuals may span more than the range but mostly span less, so all tensors with more than
    256 levels are returned.
    """
    return frozenset(
        k
        for k in large_tensors(numels)
        if bounds[k].kind == "relative"
        and 2 * NARROW * bounds[k].value < 1
        and (dims > 0 or 2 * WIDE * bounds[k].value >= 1)
    )


@cached_on_stream
def routes_of(numels: tuple[int, ...], wide: frozenset[int], device: torch.device) -> Routes:
    """Return the routes of tensors with ``numels`` values; those in ``wide`` become streams of int16."""
    narrow = [k for k in range(len(numels)) if k not in wide]
    order = [*narrow, *sorted(wide)]
    rooms = [
        ceil_div(numels[k], _ALIGNMENT) * _ALIGNMENT * (1 if k not in wide else 2) for k in order
    ]
    starts = list(accumulate(rooms, initial=0))
    streams = sorted(range(len(order)), key=order.__getitem__)
    return Routes(
        to_device_async(streams, torch.int32, device),
        to_device_async([starts[stream] for stream in streams], torch.int64, device),
        to_device_async(starts[:-1], torch.int64, device),
        to_device_async(order, torch.int32, device),
        tuple(numels[k] for k in order),
        len(narrow),
        starts[len(narrow)],
        starts[-1],
    )


@jit_kernel(do_not_specialize=["num_narrow"])
def _window_kernel(
    counts, num_narrow, symbols_coded, alphabets, lows, num_escapes, bases, BINS: tl.constexpr
):
    """One program chooses the window of one wide stream from the counts of its codes modulo 4096."""
    j = tl.program_id(0)
    k = num_narrow + j
    low, size = tl.load(lows + k), tl.load(alphabets + k)
    tl.store(bases + j, low)
    tl.store(num_escapes + j, tl.full((), 0, tl.int64))
    if size > _NARROW:
        above = tl.arange(0, BINS)
        table = counts + table_start(k.to(tl.int64), num_narrow)
        found = tl.load(table + ((above + low) & (BINS - 1)))
        num = tl.load(symbols_coded + k)
        # codes are taken relative to the smallest, so the mean is rounded down
        mean = tl.sum(found * above, axis=0) // num
        first = tl.minimum(tl.maximum(mean - (_NARROW - 1) // 2, 0), size - (_NARROW - 1))
        is_inside = (above >= first) & (above < first + _NARROW - 1)
        outside = num - tl.sum(tl.where(is_inside, found, 0), axis=0)
        if _ESCAPE_NBYTES * outside <= tl.maximum(_TABLE_NBYTES, num // _VALUES_PER_BYTE):
            tl.store(alphabets + k, _NARROW)
            tl.store(lows + k, low + first.to(tl.int32))
            tl.store(num_escapes + j, outside)


@triton.jit
def _escapes_of(symbols, position, end, low):
    """Return codes modulo 4096, and which of them escape a narrow window from ``low`` on."""
    held = tl.load(symbols + position, mask=position < end, other=0).to(tl.int32)
    escapes = (position < end) & (((held - low) & (_WIDE - 1)) >= _NARROW - 1)
    return held, escapes


@triton.jit
def _own_run(count, LANES: tl.constexpr):
    """Return the symbols ``[begin, end)`` of this program, among the programs along axis 1."""
    num_programs = tl.num_programs(1)
    run = (count + num_programs * LANES - 1) // (num_programs * LANES) * LANES
    begin = tl.program_id(1) * run
    return begin, tl.minimum(begin + run, count)


@jit_kernel(do_not_specialize=["num_narrow"])
def _count_escapes_kernel(
    symbols, starts, symbols_coded, lows, num_narrow, num_escapes, run_escapes, LANES: tl.constexpr
):
    """Program (j, p) counts the escapes of the p-th run of wide stream j, if the stream has any."""
    j = tl.program_id(0)
    k = num_narrow + j
    if tl.load(num_escapes + j) > 0:
        source = (symbols + tl.load(starts + k)).to(tl.pointer_type(tl.int16))
        begin, end = _own_run(tl.load(symbols_coded + k), LANES)
        low = tl.load(lows + k)
        found = tl.zeros([LANES], dtype=tl.int32)
        for start in range(begin, end, LANES):
            _, escapes = _escapes_of(source, start + tl.arange(0, LANES), end, low)
            found += escapes.to(tl.int32)
        place = j * tl.num_programs(1) + tl.program_id(1)
        tl.store(run_escapes + place, tl.sum(found, axis=0))


@jit_kernel(do_not_specialize=["num_narrow"])
def _put_escapes_kernel(
    symbols, starts, symbols_coded, lows, num_narrow, num_escapes, run_escapes, bases, places,
    escapes, LANES: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Program (j, p) stores positions and codes of the escapes of the p-th run of wide stream j."""
    j = tl.program_id(0)
    k = num_narrow + j
    total = tl.load(num_escapes + j)
    if total > 0:
        run = tl.arange(0, RUNS)
        before = run < tl.program_id(1)
        earlier = tl.load(run_escapes + j * tl.num_programs(1) + run, mask=before, other=0)
        rank = tl.sum(earlier, axis=0)
        source = (symbols + tl.load(starts + k)).to(tl.pointer_type(tl.int16))
        begin, end = _own_run(tl.load(symbols_coded + k), LANES)
        low, base = tl.load(lows + k), tl.load(bases + j)
        positions = escapes + 2 * tl.load(places + j)
        codes = positions + total
        for start in range(begin, end, LANES):
            position = start + tl.arange(0, LANES)
            held, found = _escapes_of(source, position, end, low)
            place = rank + tl.cumsum(found.to(tl.int32), axis=0) - 1
            tl.store(positions + place, position.to(tl.int32), mask=found)
            code = base + ((held - base) & (_WIDE - 1))
            tl.store(codes + place, code, mask=found)
            rank += tl.sum(found.to(tl.int32), axis=0)


def _most_escapes(numel: int) -> int:
    """Return how many codes of a tensor may escape for a narrow window still to be chosen."""
    return max(WIDE_TABLE_NBYTES, numel // WIDE_VALUES_PER_BYTE) // ESCAPE_NBYTES


@cached_on_stream
def _escape_places(numels: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return where the escapes of each tensor with ``numels`` values start, int64."""
    places = list(accumulate(map(_most_escapes, numels), initial=0))
    return to_device_async(places[:-1], torch.int64, device)


@lru_cache(maxsize=64)
def _layout(num_wide: int, num_escapes: int, num_runs: int) -> Layout:
    return Layout.of(
        {
            "num_escapes": (torch.int64, num_wide),
            "bases": (torch.int32, num_wide),
            "run_escapes": (torch.int32, num_wide * num_runs),
            "escapes": (torch.int32, 2 * num_escapes),
        }
    )


def _choose(
    routes: Routes,
    counts: torch.Tensor,
    symbols_coded: torch.Tensor,
    quantized: Quantized,
    num_escapes: torch.Tensor,
    bases: torch.Tensor,
) -> None:
    _window_kernel[(num_escapes.numel(),)](
        counts, routes.num_narrow, symbols_coded, quantized.alphabets, quantized.lows, num_escapes,
        bases, BINS=WIDE, num_warps=16,
    )  # fmt: skip


def choose_windows_alone(
    routes: Routes, counts: torch.Tensor, quantized: Quantized
) -> torch.Tensor:
    """Choose the windows of wide streams whose symbols are not kept; return the number of escapes of each.

    Arguments are as in ``choose_windows``.
    """
    num_wide, device = len(routes.capacities) - routes.num_narrow, counts.device
    num_escapes = working_tensor((num_wide,), torch.int64, device)
    bases = working_tensor((num_wide,), torch.int32, device)
    _choose(routes, counts, quantized.counts, quantized, num_escapes, bases)
    return num_escapes


def choose_windows(
    routes: Routes, streams: Streams, counts: torch.Tensor, quantized: Quantized
) -> WideTensors:
    """Choose the windows of wide streams, and collect the codes that escape them.

    Args:
        routes: routes of the list, with at least one wide stream.
        streams: its streams, with alphabets and rotations for all codes.
        counts: symbol counts of all streams.
        quantized: facts about the list; alphabets and lows become those of the windows.
    """
    device, numels = streams.symbols.device, routes.capacities[routes.num_narrow :]
    num_runs = min(_MOST_RUNS, programs_per_tensor(numels, _SYMBOLS_PER_STEP, 4))
    held = _layout(len(numels), sum(map(_most_escapes, numels)), num_runs).carve(device)
    wide = WideTensors(
        routes.streams, routes.num_narrow, held["num_escapes"], held["escapes"],
        _escape_places(numels, device),
    )  # fmt: skip
    _choose(routes, counts, streams.counts, quantized, wide.num_escapes, held["bases"])
    grid = (len(numels), num_runs)
    _count_escapes_kernel[grid](
        streams.symbols, streams.starts, streams.counts, quantized.lows, routes.num_narrow,
        wide.num_escapes, held["run_escapes"], LANES=_SYMBOLS_PER_STEP, num_warps=4,
    )  # fmt: skip
    _put_escapes_kernel[grid](
        streams.symbols, streams.starts, streams.counts, quantized.lows, routes.num_narrow,
        wide.num_escapes, held["run_escapes"], held["bases"], wide.places, wide.escapes,
        LANES=_SYMBOLS_PER_STEP, RUNS=_MOST_RUNS, num_warps=4,
    )  # fmt: skip
    return wide
