"""Packed payloads of a list of tensors in Triton, of their codes (``flat``) or of residuals (``delta``).

Encoding reads every value twice, three times for a relative bound. First, programs quantize tiles of 1024 values
and measure how many words each takes. A prefix sum over the tiles and one small program then decide sizes and
places. Finally, programs quantize the tiles again and write their words. Memory is needed only for the payloads, and
need not exceed them if the host waits for their sizes in between. For tensors so small that launches take longer
than the work, ``packed_short`` needs two launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.packed_short import are_small, encode_small
from tersor.kernels.pack.blocks.gpu.line_tile import line_fields, measure_line
from tersor.kernels.pack.blocks.gpu.pack_tile import (
    measure_tile,
    predicted_fields,
    tile_fields,
)
from tersor.kernels.pack.blocks.gpu.plane_tile import (
    by_lanes,
    can_be_planes,
    measure_planes,
    plane_fields,
)
from tersor.kernels.pack.blocks.gpu.tile import (
    PACK_RUN,
    SCAN_VALUES,
    TILE,
    close_body,
    put_tile,
)
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES, BitpackLayout
from tersor.kernels.payload.gpu.plan import (
    CODED,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    close_payload,
    fits,
    make_plan,
)
from tersor.kernels.payload.gpu.uncoded import (
    examine_tile,
    finish_tiles,
    load_grid,
    programs_per_tensor,
)
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.predict.axes import predicting_shape
from tersor.kernels.predict.gpu import load_shape, shape_table
from tersor.kernels.quantize.gpu.finite_range import TILE as RANGE_TILE
from tersor.kernels.quantize.gpu.finite_range import fold_ranges, key_dtype
from tersor.kernels.quantize.gpu.grids import grid_table
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    TileTable,
    addresses,
    are_aligned,
    bound_table,
    sum_before,
    tile_table,
)
from tersor.types import Bound

_TAIL = tl.constexpr(TAIL_NBYTES)

_MAX_PROGRAMS: Final = 4224
"""Most concurrent programs that predict, each with its own residuals in memory: as many warps as an H200 holds."""

_MIN_PROGRAMS: Final = 1056
"""Programs that are worth their memory, 4 MiB together, for any list: an eighth of the warps of an H200."""

_RESIDUALS_SHARE: Final = 16
"""The residuals of all programs take at most this fraction of the bytes of the values."""


_LOOK_RUN: Final = 32
"""Tiles that one program checks for predictors that are outliers."""

_PLANE_REGISTERS: Final = 80
"""Limit per thread when measuring with two or three predicting axes: 25 warps per multiprocessor, no spills."""

_MEASURE_REGISTERS: Final = 96
_WRITE_REGISTERS: Final = 128
"""Limits per thread when predicting along one line. The compiler would take 168, for values of the careful path,
and leave room for 12 warps per multiprocessor; with these limits, almost nothing spills."""


@triton.jit
def _shape_of(shapes, k, DIMS: tl.constexpr):
    """Return the sizes of the last axes of tensor ``k``, the last one first; ones unless several axes predict."""
    if DIMS > 1:
        return load_shape(shapes, k)
    else:
        return 1, 1, 1


@triton.jit
def _measure_shaped(
    address, base, count, shape, grid, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Do what ``measure_tile`` does, faster if lines are multiples of 32 long and all values have codes.

    The fast path assumes that all predictors have codes; ``_remeasure_kernel`` corrects the tiles where one has none.
    """
    num_words, outliers = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    is_done, varies = base < 0, base < 0
    if TYPE != F64:
        is_plain = can_be_planes(base, count, shape)
        if is_plain:
            num_words, is_done, varies = measure_planes(
                address, base, count, shape, grid, TYPE, ALIGNED, BLOCK, DIMS
            )
    if not is_done:
        num_words, outliers, varies = measure_tile(
            address, base, count, shape, grid, TYPE, ALIGNED, BLOCK, DIMS
        )
    return num_words, outliers, varies


@triton.jit
def _have_outliers(outliers, begin, end):
    """True if the one or two tiles that contain the values ``[begin, end)`` of a tensor have outliers.

    ``outliers`` holds the counts of the tensor's tiles; values before the tensor are ignored.
    """
    least, most = tl.maximum(begin, 0) // TILE, tl.maximum(end - 1, 0) // TILE
    return (tl.load(outliers + least) | tl.load(outliers + most)) > 0


@triton.jit
def _is_clean(outliers, base, shape, DIMS: tl.constexpr):
    """True if neither the values of a tile nor their predictors are outliers; see ``_have_outliers``."""
    # the left neighbour is a predictor on every line
    begin, end, width = base - 1, base + TILE, shape[0].to(tl.int64)
    found = _have_outliers(outliers, begin, end)
    found |= _have_outliers(outliers, begin - width, end - width)
    if DIMS == 3:
        plane = width * shape[1]
        found |= _have_outliers(outliers, begin - plane, end - plane)
        plane += width
        found |= _have_outliers(outliers, begin - plane, end - plane)
    return found == 0


@triton.jit
def _shaped_fields(
    address, base, count, shape, grid, scratch, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """Return what ``predicted_fields`` does, with the fast path of ``_measure_shaped``."""
    fields, is_done = tl.zeros([8, 32, 4], dtype=tl.uint32), base < 0
    if TYPE != F64:
        is_plain = can_be_planes(base, count, shape)
        if is_plain:
            found, is_done, _varies = plane_fields(
                address, base, count, shape, grid, TYPE, ALIGNED, DIMS
            )
            fields = by_lanes(found, scratch)
    if not is_done:
        fields = predicted_fields(address, base, count, shape, grid, scratch, TYPE, DIMS)
    return fields


@jit_kernel(do_not_specialize=["num_tiles"])
def _measure_kernel(
    starts, counts, first_tiles, first_runs, owners, grids, keys, shapes, stats, num_tiles,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """One program measures ``RUN`` tiles of one tensor.

    After this, only a tensor whose values may all be equal needs its range and its number of non-finite
    values. Therefore each tile either proves that its values vary, or scans them again.
    """
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
    count, address = tl.load(counts + k), tl.load(starts + k)
    grid, shape = load_grid(grids, k), _shape_of(shapes, k, DIMS)
    begin = first + (run - tl.load(first_runs + k)) * RUN
    for tile in range(begin, tl.minimum(begin + RUN, last)):
        base = (tile - first) * TILE
        if DIMS == 0:
            num_words, outliers, varies = measure_tile(
                address, base, count, shape, grid, TYPE, ALIGNED, BLOCK, DIMS
            )
        elif DIMS == 1:
            num_words, outliers, varies = measure_line(
                address, base, count, grid, TYPE, ALIGNED, BLOCK
            )
        else:
            num_words, outliers, varies = _measure_shaped(
                address, base, count, shape, grid, TYPE, ALIGNED, BLOCK, DIMS
            )
        specials = 0
        if not varies:
            start = address + base * (TYPE.primitive_bitwidth // 8)
            limit = tl.minimum(count - base, TILE).to(tl.int32)
            specials = examine_tile(start, limit, keys + 2 * k, TYPE, SCAN_VALUES)
        tl.store(stats + tile, num_words.to(tl.int64))
        tl.store(stats + num_tiles + tile, (outliers.to(tl.int64) << 32) | specials)
        # not one flag per tensor: thousands of stores to one location take 100 us
        tl.store(stats + 2 * num_tiles + tile, varies.to(tl.int64))


@jit_kernel(do_not_specialize=["num_tiles"])
def _remeasure_kernel(
    starts, counts, first_tiles, first_runs, owners, grids, shapes, stats, num_tiles,
    TYPE: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """One program measures those of ``RUN`` tiles again that have outliers among values or predictors."""
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
    shape, outliers = _shape_of(shapes, k, DIMS), stats + num_tiles + first
    begin = first + (run - tl.load(first_runs + k)) * RUN
    stop = tl.minimum(begin + RUN, last)
    tiles = tl.minimum(begin + tl.arange(0, RUN), stop - 1)
    is_clean = _is_clean(outliers, (tiles - first) * TILE, shape, DIMS)
    if tl.min(is_clean.to(tl.int32), axis=0) == 0:
        count, address, grid = tl.load(counts + k), tl.load(starts + k), load_grid(grids, k)
        for tile in range(begin, stop):
            base = (tile - first) * TILE
            if _is_clean(outliers, base, shape, DIMS) == 0:
                num_words, _outliers, _varies = measure_tile(
                    address, base, count, shape, grid, TYPE, False, BLOCK, DIMS
                )
                tl.store(stats + tile, num_words.to(tl.int64))


@jit_kernel(do_not_specialize=["num_runs", "room"])
def _write_kernel(
    starts, counts, first_tiles, first_runs, owners, grids, shapes, scratch, ends, plan, num_runs,
    out, room, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
    DIMS: tl.constexpr,
):  # fmt: skip
    """One program writes its share of all runs of ``RUN`` tiles, if their tensors are coded and fit."""
    for run in range(tl.program_id(0).to(tl.int64), num_runs, tl.num_programs(0)):
        k = tl.load(owners + run)
        row = plan + k * NUM_FIELDS
        if (tl.load(row + MODE) == CODED) & fits(row, room):
            first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
            count, address = tl.load(counts + k), tl.load(starts + k)
            grid, shape = load_grid(grids, k), _shape_of(shapes, k, DIMS)
            origin = sum_before(ends, first)
            body = out + tl.load(row + OFFSET) + HEADER_NBYTES
            begin = first + (run - tl.load(first_runs + k)) * RUN
            for tile in range(begin, tl.minimum(begin + RUN, last)):
                base = (tile - first) * TILE
                if DIMS == 0:
                    fields = tile_fields(address, base, count, grid, TYPE, ALIGNED)
                elif DIMS == 1:
                    fields = line_fields(address, base, count, grid, TYPE, ALIGNED)
                else:
                    own = scratch + tl.program_id(0) * TILE
                    fields = _shaped_fields(
                        address, base, count, shape, grid, own, TYPE, ALIGNED, DIMS
                    )
                before, end = sum_before(ends, tile) - origin, sum_before(ends, tile + 1) - origin
                put_tile(body, count, tile - first, last - first, before, end, fields, BLOCK)


@jit_kernel(do_not_specialize=["num_tiles", "room"])
def _finish_kernel(
    starts, counts, first_tiles, grids, ends, plan, num_tiles, out, room, TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (k, p) finishes every p-th tile of tensor k; the first program writes the header."""
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    if fits(row, room):
        payload = out + tl.load(row + OFFSET)
        count, address = tl.load(counts + k), tl.load(starts + k)
        first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
        finish_tiles(
            payload, row, address, count, first, last, ends, num_tiles, load_grid(grids, k), TYPE,
            TILE, SCAN_VALUES,
        )  # fmt: skip
        if tl.program_id(1) == 0:
            close_payload(payload, count, row, TYPE)
            if tl.load(row + MODE) == CODED:
                total = sum_before(ends, last) - sum_before(ends, first)
                close_body(payload + HEADER_NBYTES, count, last - first, total, BLOCK)


@cached_on_stream
def _fixed_nbytes(numels: tuple[int, ...], block: int, device: torch.device) -> torch.Tensor:
    layouts = [BitpackLayout(numel, block) for numel in numels]
    numbers = [layout.words_start + TAIL_NBYTES for layout in layouts]
    return to_device_async(numbers, torch.int64, device)


@dataclass(frozen=True, slots=True)
class _List:
    """Arguments of kernels for tensors of one dtype and device, except for their addresses.

    Attributes:
        numels: number of values of each tensor.
        dtype: dtype of all tensors.
        device: device of all tensors.
        aligned: whether all addresses are multiples of 16.
        tiles: tiles of 1024 values.
        runs: runs of tiles that one program takes one after the other.
        block: codes per block.
        dims: number of predicting axes; 0 for none.
        shapes: ``predict.gpu.shape_table``, if more than one axis predicts.
    """

    numels: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    aligned: bool
    tiles: TileTable
    runs: TileTable
    block: int
    dims: int
    shapes: torch.Tensor | None

    @classmethod
    def of(cls, xs: Sequence[torch.Tensor], block: int, dims: int) -> _List:
        """Describe contiguous tensors."""
        device, numels = xs[0].device, tuple(x.numel() for x in xs)
        shapes = None
        if dims > 1:
            shapes = shape_table(tuple(predicting_shape(tuple(x.shape), dims) for x in xs), device)
        tiles, runs = (tile_table(numels, n * TILE_VALUES, device) for n in (1, PACK_RUN))
        return cls(numels, xs[0].dtype, device, are_aligned(xs), tiles, runs, block, dims, shapes)

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time constants of the kernels that compute fields."""
        return {
            "TYPE": TYPES[self.dtype], "ALIGNED": self.aligned, "BLOCK": self.block,
            "RUN": PACK_RUN, "DIMS": self.dims, "num_warps": 1,
        }  # fmt: skip

    def registers(self, limit: int) -> int | None:
        """Return ``limit`` if it applies to this list, else None; float64 needs more registers."""
        return limit if self.dims == 1 and self.dtype != torch.float64 else None

    def measure_registers(self) -> int | None:
        """Return the register limit of the kernel that measures."""
        if self.dims > 1 and self.dtype != torch.float64:
            return _PLANE_REGISTERS
        return self.registers(_MEASURE_REGISTERS)

    def writers(self) -> tuple[int, torch.Tensor | None]:
        """Return the number of programs that write tiles, and memory for their residuals if two or more axes predict."""
        if self.dims < 2:
            return self.runs.num_tiles, None
        most = self.tiles.num_tiles * self.dtype.itemsize // (4 * _RESIDUALS_SHARE)
        count = min(self.runs.num_tiles, _MAX_PROGRAMS, max(most, _MIN_PROGRAMS))
        return count, torch.empty(count * TILE_VALUES, dtype=torch.int32, device=self.device)

    def write(self, state: tuple[torch.Tensor, ...], nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory.

        ``state`` comes from ``encode_packed``: addresses, grids, the prefix sums that ``make_plan`` takes, and its
        plan.
        """
        starts, grids, ends, plan = state
        tiles, runs = self.tiles, self.runs
        out = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        with torch.cuda.device_of(out):
            num_programs, scratch = self.writers()
            _write_kernel[(num_programs,)](
                starts, tiles.counts, tiles.first_tiles, runs.first_tiles, runs.owners, grids,
                self.shapes, scratch, ends, plan, runs.num_tiles, out, nbytes, **self.constants,
                maxnreg=self.registers(_WRITE_REGISTERS),
            )  # fmt: skip
            _finish_kernel[(len(self.numels), programs_per_tensor(self.numels, TILE_VALUES, 1))](
                starts, tiles.counts, tiles.first_tiles, grids, ends, plan, tiles.num_tiles, out,
                nbytes, TYPE=self.constants["TYPE"], BLOCK=self.block, num_warps=1,
            )  # fmt: skip
        return out


def _measure(
    one: _List, starts: torch.Tensor, grids: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Return prefix sums for ``make_plan``; fold the ranges of tensors that may not vary into ``keys``."""
    tiles, runs = one.tiles, one.runs
    stats = torch.empty(3 * tiles.num_tiles, dtype=torch.int64, device=one.device)
    _measure_kernel[(runs.num_tiles,)](
        starts, tiles.counts, tiles.first_tiles, runs.first_tiles, runs.owners, grids, keys,
        one.shapes, stats, tiles.num_tiles, **one.constants,
        maxnreg=one.measure_registers(),
    )  # fmt: skip
    if one.dims > 1 and one.dtype != torch.float64:
        runs = tile_table(one.numels, _LOOK_RUN * TILE_VALUES, one.device)
        _remeasure_kernel[(runs.num_tiles,)](
            starts, tiles.counts, tiles.first_tiles, runs.first_tiles, runs.owners, grids,
            one.shapes, stats, tiles.num_tiles, TYPE=one.constants["TYPE"], BLOCK=one.block,
            RUN=_LOOK_RUN, DIMS=one.dims, num_warps=1,
        )  # fmt: skip
    return torch.cumsum(stats, 0, out=stats)


def encode_packed(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: BitpackEncoder,
    with_ranges: bool = False,
    dims: int = 0,
) -> FusedList:
    """Encode contiguous tensors of one dtype and device, without waiting.

    Args:
        xs: tensors to encode.
        bounds: one per tensor.
        encoder: an encoder without bases.
        with_ranges: also compute the ranges of small tensors, which takes an extra launch.
        dims: number of predicting axes; 0 for none.

    Returns:
        A list that needs no second pass, because every form of a payload is known. It has ranges if there are
        relative bounds; for small tensors only if requested.
    """
    device, dtype = xs[0].device, xs[0].dtype
    numels = tuple(x.numel() for x in xs)
    limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
    fixed = _fixed_nbytes(numels, encoder.block, device)
    capacity = sum(exact_nbytes(x.nbytes) for x in xs)
    is_small, is_relative = (
        dims == 0 and are_small(numels),
        any(b.kind == "relative" for b in bounds),
    )
    one, starts = _List.of(xs, encoder.block, dims), addresses(xs, device)
    keys = None
    if not is_small or (with_ranges and is_relative):
        keys = torch.zeros(2 * len(xs), dtype=key_dtype(dtype), device=device)
    ranges = keys if is_relative else None
    with torch.cuda.device_of(xs[0]):
        if is_relative and keys is not None:
            fold_ranges(starts, tile_table(numels, RANGE_TILE, device), keys, dtype, one.aligned)
        if is_small:
            out = torch.empty(capacity, dtype=torch.uint8, device=device)
            place = starts, limits, fixed
            sizes = encode_small(numels, *place, dtype, one.aligned, encoder.block, out)
            return FusedList(sizes, out, keys=ranges)
        keys = cast("torch.Tensor", keys)
        grids = grid_table(keys, limits, dtype)
        ends = _measure(one, starts, grids, keys)
        plan, sizes = make_plan(one.tiles, ends, fixed, keys, grids, dtype)
    state = (starts, grids, ends, plan)
    return FusedList(sizes, Unwritten(capacity, xs, state, one.write), keys=ranges)
