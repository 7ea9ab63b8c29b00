"""Payloads of ``rms`` for a list of tensors in Triton: values are read once, after some sampled groups.

The sampled groups decide frequencies and levels, so the coder need not wait for all symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.pipeline import RmsPipeline
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    EncodedStreams,
    Streams,
    encode_streams,
    place_streams,
)
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.group.rms import layout
from tersor.kernels.group.rms.gpu import (
    GROUP,
    WORDS,
    is_outlier,
    load_scalable,
    scales_of,
    shifted_codes,
    stored_scales,
    units_of,
    without_outliers,
)
from tersor.kernels.payload.gpu.open import copy_values
from tersor.kernels.payload.gpu.plan import (
    CODED,
    EXACT,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    OUTLIERS,
    close_payload,
    decide,
    fits,
    put_plan,
    store_outliers,
)
from tersor.kernels.payload.gpu.uncoded import programs_per_tensor
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.quantize.gpu.values import SHIFT, bits_of, from_bits
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import F32, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    TileTable,
    addresses,
    are_aligned,
    num_parts,
    padded,
    store_zeros,
    sum_before_in_tensor,
    sum_tiles,
    tile_table,
)
from tersor.kernels.runtime.workspace import Layout

_ROWS: Final = 4
_TILE: Final = _ROWS * layout.GROUP
"""Each thread holds 32 values, whose loads are all in flight at once. A program is one warp, so sums over a group
stay within it."""
_SAMPLED_ROWS: Final = 4
"""Groups whose symbols one program counts; to count zeros it reads all sampled groups."""
_ALL_ROWS: Final = 16
"""Sampled groups that it reads at a time to count zeros."""
_ALIGNMENT: Final = 64
"""The symbols of a tensor start at a multiple of this many bytes."""
_PART: Final = 1024
_LANES: Final = 1024
LEVELS: Final = 128
"""Entries per tensor for fractions, and for the sums that they are computed from."""
_NUM_SAMPLED = tl.constexpr(layout.NUM_SAMPLED)
_ZEROS_PER_VALUE = tl.constexpr(layout.ZEROS_PER_VALUE)
_LEAST_FRACTION, _MIDDLE = tl.constexpr(layout.LEAST_FRACTION), tl.constexpr(layout.MIDDLE)
_NARROW, _LEVELS = tl.constexpr(NARROW), tl.constexpr(LEVELS)
HEAD_NBYTES = tl.constexpr(layout.HEAD_NBYTES)


@triton.jit
def scales_start(has_zeros, top):
    """Return the first byte of the scales in a body."""
    return HEAD_NBYTES + tl.where(has_zeros, (2 * top + 7) // 8 * 8, 0).to(tl.int64)


@triton.jit
def _places(first_rows, ROWS: tl.constexpr):
    """Return positions [64 * ROWS, 4] of groups that start at ``first_rows``, int64 [ROWS]."""
    word = tl.arange(0, ROWS * WORDS)
    start = tl.reshape(tl.broadcast_to(first_rows[:, None], [ROWS, WORDS]), [ROWS * WORDS])
    return (start + 4 * (word % WORDS))[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def _sampled(row, count):
    """Return the first value of sampled group ``row``, as in ``layout.sampled_groups``; ``count`` if there is none."""
    num_groups = num_parts(count, GROUP)
    num_sampled = tl.maximum(tl.minimum(num_groups, _NUM_SAMPLED), 1)
    return tl.where(row < num_sampled, row * num_groups // num_sampled * GROUP, count)


@jit_kernel(do_not_specialize=["top"])
def _start_kernel(frequencies, sums, totals, alphabets, rotations, top):
    """One program initialises the counters and the alphabet of one tensor."""
    k = tl.program_id(0).to(tl.int64)
    # every count starts at 1, so that no symbol is impossible
    ones = tl.full([_NARROW], 1, tl.int64)
    tl.store(frequencies + k * _NARROW + tl.arange(0, _NARROW), ones)
    zeros = tl.zeros([_LEVELS], dtype=tl.int64)
    tl.store(sums + k * _LEVELS + tl.arange(0, _LEVELS), zeros)
    tl.store(totals + k, tl.full((), 0, tl.int64))
    tl.store(alphabets + k, (2 * top + 1).to(tl.int32))
    tl.store(rotations + k, tl.full((), 0, tl.int32))


@jit_kernel(do_not_specialize=["step_bits", "top", "zeros"])
def _sample_kernel(
    starts, counts, step_bits, top, zeros, flags, frequencies, sums, TYPE: tl.constexpr,
    ROWS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Program (k, p) counts the symbols of the p-th ``ROWS`` sampled groups of tensor k.

    ``zeros`` is 1 or 0, or 2 to decide from all sampled groups, read ``ALL`` at a time.
    """
    k, p = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count, address = tl.load(counts + k), tl.load(starts + k)
    has_zeros = zeros == 1
    if zeros == 2:
        num_zeros, num_values = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
        for first in range(0, _NUM_SAMPLED, ALL):
            position = _places(_sampled(first + tl.arange(0, ALL).to(tl.int64), count), ALL)
            inside = position < count
            values = load_scalable(address, position, count, TYPE, False, False)
            num_zeros += tl.sum(tl.sum(((values == 0) & inside).to(tl.int32), axis=1), axis=0)
            num_values += tl.sum(tl.sum(inside.to(tl.int32), axis=1), axis=0)
        has_zeros = num_zeros * _ZEROS_PER_VALUE > num_values
    if p == 0:
        tl.store(flags + k, has_zeros.to(tl.int64))
    row = _sampled(p * ROWS + tl.arange(0, ROWS).to(tl.int64), count)
    position = _places(row, ROWS)
    inside = position < count
    values = load_scalable(address, position, count, TYPE, False, False)
    sizes = tl.minimum(count - row, GROUP).to(tl.int32)
    values, peaks, _ = without_outliers(values, ROWS)
    scales = scales_of(values, peaks, sizes, has_zeros, ROWS)
    units = units_of(values, scales, from_bits(step_bits, F32), ROWS)
    symbols = shifted_codes(values, units, has_zeros) - (SHIFT - top)
    # no symbol is 255: places beyond the last value are counted there
    held = tl.reshape(tl.where(inside, symbols, _NARROW - 1), [ROWS * GROUP])
    found = tl.histogram(held, _NARROW)
    bin_ = tl.arange(0, _NARROW)
    shown = (found > 0) & (bin_ < _NARROW - 1)
    tl.atomic_add(frequencies + k * _NARROW + bin_, found.to(tl.int64), mask=shown)
    if has_zeros:
        code = tl.abs(symbols - top)
        parts = (units * 65536.0).to(tl.int64)
        tl.atomic_add(sums + k * _LEVELS + code, parts, mask=inside & (code > 0))


@triton.jit
def _quantize(
    address, limit, target, scales, step, has_zeros, top, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Store symbols and scales of a tile of ``limit`` values; return the number of its outliers."""
    word = tl.arange(0, ROWS * WORDS)
    position = word[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_scalable(address, position, limit, TYPE, ALIGNED, WHOLE)
    row = tl.arange(0, ROWS)
    sizes = tl.minimum(tl.maximum(limit - row * GROUP, 0), GROUP)
    values, peaks, num_outliers = without_outliers(values, ROWS)
    found = scales_of(values, peaks, sizes, has_zeros, ROWS)
    codes = shifted_codes(values, units_of(values, found, step, ROWS), has_zeros)
    # the shift of four codes is subtracted at once, modulo 2**32
    excess: tl.constexpr = (SHIFT * 0x01010101 + 0x80000000) % 0x100000000 - 0x80000000
    joined = tl.sum(codes << (8 * tl.arange(0, 4))[None, :], axis=1) - excess + top * 0x01010101
    tl.store(target.to(tl.pointer_type(tl.int32)) + word, joined, mask=(4 * word < limit) | WHOLE)
    tl.store(scales + row, stored_scales(found), mask=(row * GROUP < limit) | WHOLE)
    return num_outliers


@jit_kernel(do_not_specialize=["step_bits", "top"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, places, groups, step_bits, top, flags, symbols, scales,
    outlier_counts, totals, TYPE: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes one tile and counts its outliers."""
    # backwards: the symbols written last are coded first, and are then still in the cache
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k = tl.load(owners + tile)
    own = tile - tl.load(first_tiles + k)
    base, count = own * (ROWS * GROUP), tl.load(counts + k)
    address = tl.load(starts + k) + base * (TYPE.primitive_bitwidth // 8)
    limit = tl.minimum(count - base, ROWS * GROUP).to(tl.int32)
    target = symbols + tl.load(places + k) + base
    own_scales = scales + tl.load(groups + k) + own * ROWS
    step, has_zeros = from_bits(step_bits, F32), tl.load(flags + k) > 0
    num_outliers = limit * 0
    if limit == ROWS * GROUP:
        num_outliers = _quantize(
            address, limit, target, own_scales, step, has_zeros, top, TYPE, ALIGNED, True, ROWS
        )
    else:
        num_outliers = _quantize(
            address, limit, target, own_scales, step, has_zeros, top, TYPE, ALIGNED, False, ROWS
        )
    tl.store(outlier_counts + tile, num_outliers.to(tl.int64))
    if num_outliers > 0:
        tl.atomic_add(totals + k, num_outliers.to(tl.int64))


@jit_kernel(do_not_specialize=["top"])
def _settle_kernel(
    frequencies, sums, fractions, totals, outlier_counts, first_tiles, top, LANES: tl.constexpr
):
    """One program computes the fractions of one tensor, and the prefix sums of its outliers if it has any."""
    k = tl.program_id(0).to(tl.int64)
    code = tl.arange(0, _LEVELS)
    inside = (code > 0) & (code <= top)
    own = frequencies + k * _NARROW + top
    # every count starts at 1, not 0
    num = tl.load(own + code, mask=inside, other=1) + tl.load(own - code, mask=inside, other=1) - 2
    mean = tl.load(sums + k * _LEVELS + code, mask=inside, other=0) // tl.maximum(num, 1)
    fraction = tl.where(num > 0, mean - ((code - 1) << 16) - 1, _MIDDLE)
    fraction = tl.minimum(tl.maximum(fraction, tl.where(code == 1, _LEAST_FRACTION, 0)), 65535)
    tl.store(fractions + k * _LEVELS + code - 1, fraction.to(tl.int16), mask=inside)
    if tl.load(totals + k) > 0:
        sum_tiles(outlier_counts, first_tiles, k, LANES)


@jit_kernel(do_not_specialize=["num_tensors", "step_bits", "top"])
def _plan_kernel(
    counts, flags, totals, body_nbytes, num_tensors, step_bits, top, plan, sizes,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program decides mode, size and place of every payload, in order."""
    end = tl.zeros([1], dtype=tl.int64)
    for start in range(0, num_tensors, LANES):
        k = start + tl.arange(0, LANES)
        inside = k < num_tensors
        count = tl.load(counts + k, mask=inside, other=0)
        has_zeros = tl.load(flags + k, mask=inside, other=0) > 0
        scales_nbytes = padded(2 * num_parts(count, GROUP))
        body = tl.load(body_nbytes + k, mask=inside, other=0)
        body += scales_start(has_zeros, top) + scales_nbytes
        outliers = tl.load(totals + k, mask=inside, other=0)
        step = tl.zeros([LANES], dtype=tl.float64) + from_bits(step_bits, F32).to(tl.float64)
        decided = decide(count, body, outliers, 0, step, count < 0, 0.0, TYPE)
        end = put_plan(plan, sizes, k, inside, decided, end)


@triton.jit
def _place_outliers(
    payload, row, address, count, outlier_counts, first, last, TYPE: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Store the outliers of this program's share of the tiles ``[first, last)``."""
    for tile in range(first + tl.program_id(1), last, tl.num_programs(1)):
        before = sum_before_in_tensor(outlier_counts, first, tile)
        if tl.load(outlier_counts + tile) > before:
            for part in range(0, TILE, PART):
                position = (tile - first) * TILE + part + tl.arange(0, PART)
                values = load_scalable(address, position, count, TYPE, False, False)
                special = (position < count) & is_outlier(values)
                store_outliers(payload, row, address, position, special, before, TYPE)
                before += tl.sum(special.to(tl.int64), axis=0)


@triton.jit
def _write_body(payload, has_zeros, num_groups, fractions, scales, top, LANES: tl.constexpr):
    """Write this program's share of the scales and all that precedes them; return the address after them."""
    body = payload + HEADER_NBYTES
    start = scales_start(has_zeros, top)
    target = (body + start).to(tl.pointer_type(tl.int16))
    for first in range(tl.program_id(1) * LANES, num_groups, tl.num_programs(1) * LANES):
        i = first + tl.arange(0, LANES)
        tl.store(target + i, tl.load(scales + i, mask=i < num_groups, other=0), mask=i < num_groups)
    if tl.program_id(1) == 0:
        tl.store(body.to(tl.pointer_type(tl.int64)), has_zeros.to(tl.int64))
        i = tl.arange(0, _LEVELS)
        own = tl.load(fractions + i, mask=i < top, other=0)
        places = (body + HEAD_NBYTES).to(tl.pointer_type(tl.int16)) + i
        tl.store(places, own, mask=has_zeros & (i < (top + 3) // 4 * 4))
        scales_nbytes = 2 * num_groups
        store_zeros(body + start + scales_nbytes, padded(scales_nbytes) - scales_nbytes, 8)
    return (body + start + padded(2 * num_groups)).to(tl.int64)


@jit_kernel(do_not_specialize=["room", "top"])
def _finish_kernel(
    starts, counts, first_tiles, groups, outlier_counts, plan, flags, fractions, scales, out, targets,
    room: tl.int64, top, TYPE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Program (k, p) writes every p-th part of the payload of tensor k, except for the coder's body.

    The first program stores the address for that body, 0 if the payload does not fit.
    """
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    target = tl.full((), 0, tl.int64)
    if fits(row, room):
        mode, payload = tl.load(row + MODE), out + tl.load(row + OFFSET)
        count, address = tl.load(counts + k), tl.load(starts + k)
        first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
        if mode == EXACT:
            body = (payload + HEADER_NBYTES).to(tl.int64)
            for tile in range(tl.program_id(1), last - first, tl.num_programs(1)):
                copy_values(address, body, tile * TILE, tl.minimum((tile + 1) * TILE, count), TYPE)
        if mode == CODED:
            num_groups = num_parts(count, GROUP)
            own_scales = scales + tl.load(groups + k)
            target = _write_body(
                payload, tl.load(flags + k) > 0, num_groups, fractions + k * _LEVELS, own_scales,
                top, PART,
            )  # fmt: skip
            if tl.load(row + OUTLIERS) > 0:
                _place_outliers(
                    payload, row, address, count, outlier_counts, first, last, TYPE, TILE, PART
                )
        if tl.program_id(1) == 0:
            close_payload(payload, count, row, TYPE)
    if tl.program_id(1) == 0:
        tl.store(targets + k, target)


@lru_cache(maxsize=64)
def _layout(num_tensors: int, num_tiles: int, num_symbols: int, num_groups: int) -> Layout:
    return Layout.of(
        {
            "symbols": (torch.uint8, num_symbols),
            "scales": (torch.int16, num_groups),
            "fractions": (torch.int16, num_tensors * LEVELS),
            "outlier_counts": (torch.int64, num_tiles),
            "flags": (torch.int64, num_tensors),
            "frequencies": (torch.int64, num_tensors * NARROW),
            "sums": (torch.int64, num_tensors * LEVELS),
            "totals": (torch.int64, num_tensors),
            "plan": (torch.int64, num_tensors * NUM_FIELDS.value),
            "targets": (torch.int64, num_tensors),
            "alphabets": (torch.int32, num_tensors),
            "rotations": (torch.int32, num_tensors),
        }
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """The encoding of one list.

    Attributes:
        xs: tensors, kept alive until their payloads are written because kernels have only their addresses.
        starts: their addresses, on the device.
        top: the largest code.
        step_bits: the bits of the step.
        tiles: tiles of ``_TILE`` values.
        places: the first symbol of each tensor, and the number of all symbols.
        groups: the first scale of each tensor, on the device.
        held: working memory, by the names of ``_layout``.
    """

    xs: Sequence[torch.Tensor]
    starts: torch.Tensor
    top: int
    step_bits: int
    tiles: TileTable
    places: tuple[int, ...]
    groups: torch.Tensor
    held: dict[str, torch.Tensor]

    @classmethod
    def of(cls, xs: Sequence[torch.Tensor], step: float) -> _Task:
        """Lay out the working memory for contiguous tensors of one dtype and device."""
        device, numels = xs[0].device, tuple(x.numel() for x in xs)
        rooms = (ceil_div(numel, _ALIGNMENT) * _ALIGNMENT for numel in numels)
        places = tuple(accumulate(rooms, initial=0))
        *groups, num_groups = accumulate(
            (ceil_div(numel, layout.GROUP) for numel in numels), initial=0
        )
        tiles = tile_table(numels, _TILE, device)
        held = _layout(len(xs), tiles.num_tiles, places[-1], num_groups).carve(device)
        return cls(
            xs, addresses(xs, device), layout.top_of(step), bits_of(layout.f32_step(step)), tiles, places,
            on_device(tuple(groups), device), held,
        )  # fmt: skip

    @property
    def numels(self) -> tuple[int, ...]:
        """Number of values of each tensor."""
        return tuple(x.numel() for x in self.xs)

    @property
    def kind(self) -> Any:
        """The dtype, as kernels take it."""
        return TYPES[self.xs[0].dtype]

    def quantize(self, zeros: bool | None) -> Streams:
        """Compute symbols, scales, levels and frequencies; return the streams of symbols."""
        held, tiles, num = self.held, self.tiles, len(self.xs)
        starts_of_symbols = on_device(self.places[:-1], self.starts.device)
        counters = held["frequencies"], held["sums"]
        alphabets, rotations = held["alphabets"], held["rotations"]
        _start_kernel[(num,)](*counters, held["totals"], alphabets, rotations, self.top)
        _sample_kernel[(num, layout.NUM_SAMPLED // _SAMPLED_ROWS)](
            self.starts, tiles.counts, self.step_bits, self.top, 2 if zeros is None else int(zeros),
            held["flags"], *counters, TYPE=self.kind, ROWS=_SAMPLED_ROWS, ALL=_ALL_ROWS, num_warps=4,
        )  # fmt: skip
        _quantize_kernel[(tiles.num_tiles,)](
            self.starts, tiles.counts, tiles.first_tiles, tiles.owners, starts_of_symbols, self.groups,
            self.step_bits, self.top, held["flags"], held["symbols"], held["scales"],
            held["outlier_counts"], held["totals"], TYPE=self.kind, ALIGNED=are_aligned(self.xs),
            ROWS=_ROWS, num_warps=1,
        )  # fmt: skip
        _settle_kernel[(num,)](
            *counters, held["fractions"], held["totals"], held["outlier_counts"], tiles.first_tiles,
            self.top, LANES=_LANES, num_warps=4,
        )  # fmt: skip
        return Streams(
            held["symbols"], starts_of_symbols, tiles.counts, self.numels, alphabets, rotations, num,
            self.places[-1],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Coded:
    """A list whose bodies are coded and whose payloads are decided.

    Attributes:
        task: the encoding.
        streams: streams of its symbols.
        encoded: the coded streams.
    """

    task: _Task
    streams: Streams
    encoded: EncodedStreams

    def write(self, state: None, nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory."""
        del state
        task, held = self.task, self.task.held
        with torch.cuda.device_of(task.starts):
            out = torch.empty(nbytes, dtype=torch.uint8, device=task.starts.device)
            _finish_kernel[(len(task.xs), programs_per_tensor(task.numels, _TILE, 4))](
                task.starts, task.tiles.counts, task.tiles.first_tiles, task.groups,
                held["outlier_counts"], held["plan"], held["flags"], held["fractions"], held["scales"],
                out, held["targets"], nbytes, task.top, TYPE=task.kind, TILE=_TILE, PART=_PART,
                num_warps=4,
            )  # fmt: skip
            place_streams(self.streams, self.encoded, held["targets"])
        return out


def encode_rms_list(xs: Sequence[torch.Tensor], pipeline: RmsPipeline) -> FusedList:
    """Encode contiguous tensors of one dtype and device, without waiting."""
    # step and zeros are not compile-time constants: saved activations change the former at every training step
    step, zeros = pipeline.quantizer
    with torch.cuda.device_of(xs[0]):
        task = _Task.of(xs, step)
        streams = task.quantize(zeros)
        encoded = encode_streams(streams, task.held["frequencies"])
        sizes = torch.empty(len(xs), dtype=torch.int64, device=xs[0].device)
        _plan_kernel[(1,)](
            task.tiles.counts, task.held["flags"], task.held["totals"], encoded.nbytes, len(xs),
            task.step_bits, task.top, task.held["plan"], sizes, TYPE=task.kind, LANES=256, num_warps=8,
        )  # fmt: skip
    capacity = sum(exact_nbytes(x.nbytes) for x in xs)
    coded = _Coded(task, streams, encoded)
    return FusedList(sizes, Unwritten(capacity, xs, None, coded.write))
