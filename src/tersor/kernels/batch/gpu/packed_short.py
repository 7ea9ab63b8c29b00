"""Packed payloads of a list of small tensors in Triton, in two launches.

Each program computes the range of its tensor, or the sizes of all payloads before its own, by itself: reading a few
thousand values takes less time than another launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.pack.blocks.gpu.pack_tile import measure_tile, tile_fields
from tersor.kernels.pack.blocks.gpu.tile import SCAN_VALUES, TILE, close_body, put_tile
from tersor.kernels.payload.gpu.plan import (
    BODY,
    CODED,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    OUTLIERS,
    SIZE,
    STEP,
    close_payload,
    decide,
)
from tersor.kernels.payload.gpu.uncoded import finish_tiles, load_grid
from tersor.kernels.quantize.gpu.grids import grid_dtype, grid_of
from tersor.kernels.quantize.gpu.values import load_values
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded, sum_before, tile_table

_MAX_TILES: Final = 8
"""Tiles of the largest tensor that counts as small."""

_MAX_TENSORS: Final = 512
"""Most tensors of a small list: each program of the second launch reads about all tensors before its own."""

_LANES: Final = 256
"""Tensors that such a program handles at a time."""


def are_small(numels: Sequence[int]) -> bool:
    """True if a list is so small that launches take longer than the work."""
    return len(numels) <= _MAX_TENSORS and max(numels) <= _MAX_TILES * TILE_VALUES


@triton.jit
def _range_of(address, count, TYPE: tl.constexpr, ALIGNED: tl.constexpr, PART: tl.constexpr):
    """Return the range of the finite values of a tensor as float64; low > high if there are none."""
    place = tl.arange(0, PART)
    compute: tl.constexpr = tl.float64 if TYPE == F64 else tl.float32
    least = tl.full([PART], float("inf"), compute)
    most = tl.full([PART], float("-inf"), compute)
    for start in range(0, count, PART):
        nan = float("nan")
        if start + PART <= count:
            values = load_values(address, start + place, count, nan, TYPE, ALIGNED, True)
        else:
            values = load_values(address, start + place, count, nan, TYPE, ALIGNED, False)
        finite = tl.abs(values) < float("inf")
        least = tl.minimum(least, tl.where(finite, values, float("inf")))
        most = tl.maximum(most, tl.where(finite, values, float("-inf")))
    # a negative zero becomes positive
    low = tl.min(least, axis=0).to(tl.float64) + 0.0
    return low, tl.max(most, axis=0).to(tl.float64) + 0.0


@jit_kernel(do_not_specialize=["num_tiles"])
def _measure_kernel(
    starts, counts, first_tiles, owners, bounds, grids, ranges, stats, num_tiles,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program computes the grid of a tensor, and measures one of its tiles.

    The program of the first tile also stores the grid and the range.
    """
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    local, count, address = (
        tile - tl.load(first_tiles + k),
        tl.load(counts + k),
        tl.load(starts + k),
    )
    low, high = _range_of(address, count, TYPE, ALIGNED, PART)
    is_relative = tl.load(bounds + 2 * k + 1) > 0
    step, inverse, checked = grid_of(tl.load(bounds + 2 * k), is_relative, low, high, TYPE)
    if local == 0:
        tl.store(grids + 3 * k, step)
        tl.store(grids + 3 * k + 1, inverse)
        tl.store(grids + 3 * k + 2, checked)
        tl.store(ranges + 2 * k, low)
        tl.store(ranges + 2 * k + 1, high)
    base = local * TILE
    grid = (step, inverse, checked)
    num_words, outliers, _ = measure_tile(
        address, base, count, (1, 1, 1), grid, TYPE, ALIGNED, BLOCK, 0
    )
    specials = 0
    # values that are not finite are outliers
    if outliers > 0:
        position = base + tl.arange(0, TILE)
        values = load_values(address, position, count, 0.0, TYPE, ALIGNED, False)
        specials = tl.sum((~(tl.abs(values) < float("inf"))).to(tl.int32), axis=0)
    tl.store(stats + tile, num_words.to(tl.int64))
    tl.store(stats + num_tiles + tile, (outliers.to(tl.int64) << 32) | specials)


@triton.jit
def _plan_own(
    k, counts, first_tiles, stats, num_tiles, max_tiles, fixed_nbytes, grids, ranges, row,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Decide the form of tensor ``k``, and its place after all tensors before it, whose sizes are also decided."""
    offset = tl.zeros([1], dtype=tl.int64)
    for start in range(0, k + 1, LANES):
        j = start + tl.arange(0, LANES)
        inside = j <= k
        first = tl.load(first_tiles + j, mask=inside, other=0)
        last = tl.load(first_tiles + j + 1, mask=inside, other=0)
        words, both = tl.zeros([LANES], dtype=tl.int64), tl.zeros([LANES], dtype=tl.int64)
        for t in range(max_tiles):
            here = inside & (first + t < last)
            words += tl.load(stats + first + t, mask=here, other=0)
            both += tl.load(stats + num_tiles + first + t, mask=here, other=0)
        low = tl.load(ranges + 2 * j, mask=inside, other=0.0)
        is_uniform = low == tl.load(ranges + 2 * j + 1, mask=inside, other=0.0)
        body = tl.load(fixed_nbytes + j, mask=inside, other=0) + padded(4 * words)
        step = tl.load(grids + 3 * j, mask=inside, other=0.0).to(tl.float64)
        count = tl.load(counts + j, mask=inside, other=0)
        mode, body, extra, number, size = decide(
            count, body, both >> 32, both & 0xFFFFFFFF, step, is_uniform, low, TYPE
        )
        own = j == k
        fields = row + tl.zeros([LANES], dtype=tl.int32)
        tl.store(fields + MODE, mode, mask=own)
        tl.store(fields + BODY, body, mask=own)
        tl.store(fields + OUTLIERS, extra, mask=own)
        tl.store(fields + STEP, number, mask=own)
        tl.store(fields + SIZE, size, mask=own)
        offset += tl.sum(tl.where(j < k, padded(size), 0), axis=0)
    tl.store(row + OFFSET + tl.arange(0, 1), offset)


@triton.jit
def _sum_tiles(stats, num_tiles, first, count, ends, TILES: tl.constexpr):
    """Store prefix sums over the words of ``count`` tiles, continued over their outliers."""
    t = tl.arange(0, TILES)
    words = tl.load(stats + first + t, mask=t < count, other=0)
    both = tl.load(stats + num_tiles + first + t, mask=t < count, other=0)
    tl.store(ends + t, tl.cumsum(words, axis=0), mask=t < count)
    both_ends = tl.cumsum(both, axis=0) + tl.sum(words, axis=0)
    tl.store(ends + count + t, both_ends, mask=t < count)


# these are parts of one allocation; compiling for each of their possible alignments would gain nothing
@jit_kernel(do_not_specialize=["num_tiles", "max_tiles", "ends", "plan", "sizes"])
def _write_kernel(
    starts, counts, first_tiles, owners, grids, ranges, fixed_nbytes, stats, num_tiles, max_tiles,
    ends, plan, sizes, out, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One program decides where the payload of one tensor goes, and writes one of its tiles there.

    The program of the first tile also writes everything outside tiles. All programs of a tensor store the same plan.
    """
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile).to(tl.int64)
    row = plan + k * NUM_FIELDS
    first = tl.load(first_tiles + k)
    count, last, local = tl.load(counts + k), tl.load(first_tiles + k + 1) - first, tile - first
    address, grid = tl.load(starts + k), load_grid(grids, k)
    ends += 2 * first
    _plan_own(
        k, counts, first_tiles, stats, num_tiles, max_tiles, fixed_nbytes, grids, ranges, row, TYPE,
        LANES,
    )  # fmt: skip
    _sum_tiles(stats, num_tiles, first, last, ends, TILES)
    # wait, because every thread reads what others have stored
    tl.debug_barrier()
    payload = out + tl.load(row + OFFSET)
    if tl.load(row + MODE) == CODED:
        body = payload + HEADER_NBYTES
        fields = tile_fields(address, local * TILE, count, grid, TYPE, ALIGNED)
        before, end = sum_before(ends, local), sum_before(ends, local + 1)
        put_tile(body, count, local, last, before, end, fields, BLOCK)
        if local == 0:
            close_body(body, count, last, sum_before(ends, last), BLOCK)
    if local == 0:
        tl.store(sizes + k, tl.load(row + SIZE))
        finish_tiles(
            payload, row, address, count, 0, last, ends, last, grid, TYPE, TILE, SCAN_VALUES
        )
        close_payload(payload, count, row, TYPE)


def encode_small(
    numels: tuple[int, ...], starts: torch.Tensor, bounds: torch.Tensor, fixed_nbytes: torch.Tensor,
    dtype: torch.dtype, aligned: bool, block: int, out: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Write the payloads of tensors that ``are_small`` accepts to ``out``; return their sizes.

    Args:
        numels: number of values of each tensor.
        starts: ``runtime.gpu.tiles.addresses`` of the tensors.
        bounds: ``runtime.gpu.tiles.bound_table`` of their bounds.
        fixed_nbytes: bytes of each coded body besides its words.
        dtype: dtype of the tensors.
        aligned: whether every address is a multiple of 16.
        block: codes per block.
        out: uint8 memory that fits the largest possible payloads.
    """
    device, num_tensors = out.device, len(numels)
    tiles = tile_table(numels, TILE_VALUES, device)
    num_tiles = tiles.num_tiles
    grids = torch.empty(3 * num_tensors, dtype=grid_dtype(dtype), device=device)
    ranges = torch.empty(2 * num_tensors, dtype=torch.float64, device=device)
    parts = (2 * num_tiles, 2 * num_tiles, NUM_FIELDS.value * num_tensors, num_tensors)
    numbers = torch.empty(sum(parts), dtype=torch.int64, device=device)
    stats, ends, plan, sizes = numbers.split_with_sizes(parts)
    with torch.cuda.device_of(out):
        _measure_kernel[(num_tiles,)](
            starts, tiles.counts, tiles.first_tiles, tiles.owners, bounds, grids, ranges, stats,
            num_tiles, TYPE=TYPES[dtype], ALIGNED=aligned, BLOCK=block, PART=TILE_VALUES, num_warps=1,
        )  # fmt: skip
        _write_kernel[(num_tiles,)](
            starts, tiles.counts, tiles.first_tiles, tiles.owners, grids, ranges, fixed_nbytes,
            stats, num_tiles, ceil_div(max(numels), TILE_VALUES), ends, plan, sizes, out,
            TYPE=TYPES[dtype], ALIGNED=aligned, BLOCK=block, LANES=_LANES, TILES=_MAX_TILES,
            num_warps=1,
        )  # fmt: skip
    return sizes
