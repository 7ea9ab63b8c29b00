"""Planning of the ``ans`` payloads of a list of tensors, in Triton.

First the alphabets are decided, which the coder needs. Once the sizes of its bodies are known, the form
and the place of each payload are decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton.language as tl

from tersor.kernels.entropy.symbols import body as symbols_body
from tersor.kernels.entropy.symbols.alphabet import ESCAPE_NBYTES as _ESCAPE_NBYTES
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE, Window
from tersor.kernels.payload.gpu.plan import NUM_FIELDS, decide, put_plan
from tersor.kernels.quantize.gpu.finite_range import load_range
from tersor.kernels.quantize.gpu.values import LARGEST_CODE, SMALLEST_CODE
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import TileTable, sum_tiles
from tersor.kernels.runtime.recording import working_tensor

LEAST_WIDE: Final = 1 << 18
"""Smallest tensor that may have more than 256 codes without a second pass in encoding or decoding. Lists of
smaller tensors, such as look-ups of 2048 rows, thus avoid launches that would mostly find nothing to do."""
_TILES_PER_STEP: Final = 2048
"""Tiles that one step of a loop over a tensor reads; each step waits for its loads, so few steps are better."""
_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
HEAD_NBYTES = tl.constexpr(symbols_body.HEADER.size)
ESCAPE_NBYTES = tl.constexpr(_ESCAPE_NBYTES)


def large_tensors(numels: Sequence[int]) -> list[int]:
    """Return the tensors that are large enough to have more than 256 codes."""
    return [k for k, numel in enumerate(numels) if numel >= LEAST_WIDE]


@dataclass(frozen=True, slots=True)
class Quantized:
    """Facts about the tiles of quantized tensors, then about the tensors.

    Attributes:
        extents: int32 [2 * tiles], the smallest and the largest code of each tile.
        uncoded: int64 [tiles], ``values without a code << 32 | values that are not finite``; later
            prefix sums over the tiles of each tensor that has any.
        varying: int8 [tiles], 1 if two values of the tile are proven to be finite and to differ, else 0.
        escaping: int64 [tiles], codes that escape a static table; later prefix sums, as for ``uncoded``.
            Empty without a static table.
        totals: int64 [3 * tensors]: for each tensor the sum of ``uncoded``, then the number of tiles
            proven to vary, then the sum of ``escaping``.
        counts: int64 [streams], symbols to code in each stream. Each tensor is a stream; if none is
            wide, the streams are the tensors in order.
        alphabets: int32 [streams], alphabet sizes.
        lows: int32 [streams], the code of symbol 0.
    """

    extents: torch.Tensor
    uncoded: torch.Tensor
    varying: torch.Tensor
    escaping: torch.Tensor
    totals: torch.Tensor
    counts: torch.Tensor
    alphabets: torch.Tensor
    lows: torch.Tensor


@dataclass(frozen=True, slots=True)
class WideTensors:
    """Facts about a list in which some tensors are coded in int16.

    Attributes:
        streams: int32 [tensors], the stream of each tensor; streams of bytes come first.
        num_narrow: number of streams of bytes.
        num_escapes: int64 [wide streams], codes that escape the alphabet of each stream.
        escapes: int32, the positions of the escapes of each wide stream, then their codes; None if they are not
            kept in memory.
        places: int64 [wide streams], the start of each stream's escapes in pairs of int32; None if ``escapes`` is.
    """

    streams: torch.Tensor
    num_narrow: int
    num_escapes: torch.Tensor
    escapes: torch.Tensor | None
    places: torch.Tensor | None


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size"])
def _alphabet_kernel(
    extents, uncoded, varying, escaping, totals, first_tiles, counts, grids, coded, alphabets, lows,
    status, streams, num_narrow, window_low, window_size, HAS_WIDE: tl.constexpr,
    STATIC: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program decides the alphabet of one tensor; if it is too wide, the step of the tensor's grid becomes 0."""
    k, num_tensors = tl.program_id(0), tl.num_programs(0)
    last = tl.load(first_tiles + k + 1)
    smallest = tl.full([LANES], LARGEST_CODE, tl.int32)
    largest = tl.full([LANES], SMALLEST_CODE, tl.int32)
    without, num_varying = tl.zeros([LANES], dtype=tl.int64), tl.zeros([LANES], dtype=tl.int64)
    escaped = tl.zeros([LANES], dtype=tl.int64)
    for start in range(tl.load(first_tiles + k), last, LANES):
        tile = start + tl.arange(0, LANES)
        inside = tile < last
        low = tl.load(extents + 2 * tile, mask=inside, other=LARGEST_CODE)
        high = tl.load(extents + 2 * tile + 1, mask=inside, other=SMALLEST_CODE)
        both = tl.load(uncoded + tile, mask=inside, other=0)
        smallest, largest = tl.minimum(smallest, low), tl.maximum(largest, high)
        without += both
        num_varying += tl.load(varying + tile, mask=inside, other=0).to(tl.int64)
        if STATIC:
            escaped += tl.load(escaping + tile, mask=inside, other=0)
    low, high, both = tl.min(smallest, axis=0), tl.max(largest, axis=0), tl.sum(without, axis=0)
    tl.store(totals + k, both)
    tl.store(totals + num_tensors + k, tl.sum(num_varying, axis=0))
    count = tl.load(counts + k)
    has_grid = (count > 0) & (tl.load(grids + 3 * k) > 0)
    size = high.to(tl.int64) - low + 1
    if HAS_WIDE:
        stream = tl.load(streams + k)
        largest_size = tl.where(stream < num_narrow, _NARROW, _WIDE)
    else:
        stream, largest_size = k, _NARROW
    if STATIC:
        # codes without a symbol escape, so the alphabet always fits
        low, size = window_low + low * 0, window_size.to(tl.int64) + 1
        largest_size = size
        escapes = tl.sum(escaped, axis=0)
        tl.store(totals + 2 * num_tensors + k, escapes)
        if escapes > 0:
            sum_tiles(escaping, first_tiles, k, LANES)
    is_coded = has_grid & (size <= largest_size)
    tl.store(coded + stream, tl.where(is_coded, count, 0))
    tl.store(alphabets + stream, tl.where(is_coded, size, 0).to(tl.int32))
    tl.store(lows + stream, low)
    is_left = has_grid & (size > largest_size)
    tl.store(status + k, is_left.to(tl.int32))
    tl.store(grids + 3 * k, tl.zeros((), grids.dtype.element_ty), mask=is_left)
    if both > 0:
        sum_tiles(uncoded, first_tiles, k, LANES)


@jit_kernel(do_not_specialize=["num_tensors", "num_narrow"])
def _plan_kernel(
    counts, totals, body_nbytes, keys, grids, num_tensors, plan, sizes, streams, num_narrow,
    num_escapes, TYPE: tl.constexpr, HAS_WIDE: tl.constexpr, STATIC: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """One program decides mode, size and place of every payload, in order."""
    end = tl.zeros([1], dtype=tl.int64)
    for start in range(0, num_tensors, LANES):
        k = start + tl.arange(0, LANES)
        inside = k < num_tensors
        count = tl.load(counts + k, mask=inside, other=0)
        if HAS_WIDE:
            stream = tl.load(streams + k, mask=inside, other=0)
            body = tl.load(body_nbytes + stream, mask=inside, other=0) + HEAD_NBYTES
            is_wide = inside & (stream >= num_narrow)
            escapes = tl.load(num_escapes + stream - num_narrow, mask=is_wide, other=0)
            body += ESCAPE_NBYTES * escapes
        else:
            body = tl.load(body_nbytes + k, mask=inside, other=0) + HEAD_NBYTES
        if STATIC:
            escapes = tl.load(totals + 2 * num_tensors + k, mask=inside, other=0)
            body += ESCAPE_NBYTES * escapes
        both = tl.load(totals + k, mask=inside, other=0)
        varying = tl.load(totals + num_tensors + k, mask=inside, other=0)
        low, high = load_range(keys, k, inside, TYPE)
        step = tl.load(grids + 3 * k, mask=inside, other=0.0).to(tl.float64)
        is_uniform = (varying == 0) & (low == high)
        decided = decide(count, body, both >> 32, both & 0xFFFFFFFF, step, is_uniform, low, TYPE)
        end = put_plan(plan, sizes, k, inside, decided, end)


def decide_alphabets(
    tiles: TileTable,
    quantized: Quantized,
    grids: torch.Tensor,
    status: torch.Tensor,
    streams: torch.Tensor,
    num_narrow: int,
    window: Window | None = None,
) -> None:
    """Compute the facts about tensors from those about their tiles.

    Args:
        tiles: tiles of the list.
        quantized: the fields per tile are set; those per tensor and per stream are written.
        grids: from ``quantize.gpu.grids.grid_table``; a step becomes 0 if the codes span more than 256,
            or 4096 in streams of int16.
        status: int32 [tensors], receives 1 for those tensors, else 0.
        streams: int32 [tensors], the stream of each tensor.
        num_narrow: number of streams of bytes, which come first.
        window: window of the encoder's static table, the alphabet of all tensors; None without such a table.
    """
    _alphabet_kernel[(status.numel(),)](
        quantized.extents, quantized.uncoded, quantized.varying, quantized.escaping, quantized.totals,
        tiles.first_tiles, tiles.counts, grids, quantized.counts, quantized.alphabets, quantized.lows,
        status, streams, num_narrow, *((0, 0) if window is None else (window.low, window.size)),
        HAS_WIDE=num_narrow < status.numel(), STATIC=window is not None, LANES=_TILES_PER_STEP,
        num_warps=8,
    )  # fmt: skip


def plan_payloads(
    tiles: TileTable,
    quantized: Quantized,
    body_nbytes: torch.Tensor,
    keys: torch.Tensor,
    grids: torch.Tensor,
    dtype: torch.dtype,
    wide: WideTensors | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the plan, int64 [tensors, NUM_FIELDS], and the payload sizes, int64.

    Args:
        tiles: tiles of the list.
        quantized: complete facts about it.
        body_nbytes: int64 [streams], sizes of the coder's bodies.
        keys: finite range of each tensor that is not proven to vary, as keys of
            ``quantize.gpu.finite_range``.
        grids: the grids after ``decide_alphabets``.
        dtype: dtype of the tensors.
        wide: facts about wide streams; None if all streams are of bytes.
    """
    num_tensors, device = tiles.counts.numel(), tiles.counts.device
    plan = working_tensor((num_tensors, NUM_FIELDS.value), torch.int64, device)
    sizes = torch.empty(num_tensors, dtype=torch.int64, device=device)
    _plan_kernel[(1,)](
        tiles.counts, quantized.totals, body_nbytes, keys, grids, num_tensors, plan, sizes,
        *((None, 0, None) if wide is None else (wide.streams, wide.num_narrow, wide.num_escapes)),
        TYPE=TYPES[dtype], HAS_WIDE=wide is not None, STATIC=quantized.escaping.numel() > 0, LANES=256,
        num_warps=8,
    )  # fmt: skip
    return plan, sizes
