"""Planning the payloads of a list of tensors in Triton: modes, sizes and offsets, decided on the device.

The plan has one row per tensor. The kernels that write payloads read it to know where their bytes go.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.kernels.payload import layout
from tersor.kernels.quantize.gpu.finite_range import load_range
from tersor.kernels.quantize.gpu.values import load_values, quantize_values
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import TileTable, padded, store_zeros, sum_before

HEADER_NBYTES = tl.constexpr(layout.HEADER.size)
EXACT, CODED, CONSTANT = (
    tl.constexpr(mode) for mode in (layout.EXACT, layout.CODED, layout.CONSTANT)
)
_LEAST_LOG2 = tl.constexpr(layout.MAX_VALUES_PER_BYTE_LOG2)

MODE, OFFSET, BODY, OUTLIERS, STEP, SIZE, NUM_FIELDS = (tl.constexpr(k) for k in range(7))
"""Columns of a plan, int64: mode, offset of the payload in the buffer, size of the body in bytes, number of
outliers, bits of the float64 step (or constant), size of the payload in bytes."""


@triton.jit
def decide(count, body, outliers, specials, step, is_uniform, low, TYPE: tl.constexpr):
    """Decide how tensors are stored; numbers are int64 or float64.

    Args:
        count: number of values of each tensor.
        body: size of its coded body.
        outliers: number of values without a code.
        specials: number of values that are not finite.
        step: step of the grid; 0 if no grid can keep the bound.
        is_uniform: whether there are finite values and all of them are equal.
        low: the smallest finite value.
        TYPE: dtype of the values.

    Returns:
        Mode, size of the body, number of outliers, bits of the float64 in the header, size of the payload.
    """
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    exact = HEADER_NBYTES + padded(count * value_nbytes)
    coded = HEADER_NBYTES + body + padded(4 * outliers) + padded(value_nbytes * outliers)
    constant = HEADER_NBYTES + padded(4 * specials) + padded(value_nbytes * specials)
    is_coded = (count > 0) & (step > 0) & (coded < exact)
    is_constant = (count > 0) & is_uniform & (constant < exact)
    size = tl.where(is_coded, coded, tl.where(is_constant, constant, exact))
    mode = tl.where(is_coded, CODED, tl.where(is_constant, CONSTANT, EXACT)).to(tl.int64)
    body = tl.where(is_coded, body, tl.where(is_constant, 0, exact - HEADER_NBYTES))
    extra = tl.where(is_coded, outliers, tl.where(is_constant, specials, 0))
    number = tl.where(is_coded, step, tl.where(is_constant, low, 0.0)).to(tl.int64, bitcast=True)
    return mode, body, extra, number, tl.maximum(size, count >> _LEAST_LOG2)


@triton.jit
def put_plan(plan, sizes, k, inside, decided, end):
    """Store the results of ``decide`` for tensors ``k``, whose payloads follow each other from ``end`` on.

    Returns the offset at which the payloads after them start.
    """
    mode, body, extra, number, size = decided
    room = tl.where(inside, padded(size), 0)
    row = plan + k * NUM_FIELDS
    tl.store(row + MODE, mode, mask=inside)
    tl.store(row + OFFSET, tl.cumsum(room, axis=0) - room + end, mask=inside)
    tl.store(row + BODY, body, mask=inside)
    tl.store(row + OUTLIERS, extra, mask=inside)
    tl.store(row + STEP, number, mask=inside)
    tl.store(row + SIZE, size, mask=inside)
    tl.store(sizes + k, size, mask=inside)
    return end + tl.sum(room, axis=0)


@jit_kernel(do_not_specialize=["num_tensors"])
def plan_kernel(
    counts, first_tiles, ends, fixed_nbytes, keys, grids, num_tensors, plan, sizes,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program decides the mode, size and offset of all payloads, in order."""
    num_tiles = tl.load(first_tiles + num_tensors)
    end = tl.zeros([1], dtype=tl.int64)
    for start in range(0, num_tensors, LANES):
        k = start + tl.arange(0, LANES)
        inside = k < num_tensors
        count = tl.load(counts + k, mask=inside, other=0)
        first = tl.load(first_tiles + k, mask=inside, other=0)
        last = tl.load(first_tiles + k + 1, mask=inside, other=0)
        words = sum_before(ends, last) - sum_before(ends, first)
        body = tl.load(fixed_nbytes + k, mask=inside, other=0) + padded(4 * words)
        both = sum_before(ends, last + num_tiles) - sum_before(ends, first + num_tiles)
        outliers, specials = both >> 32, both & 0xFFFFFFFF
        low, high = load_range(keys, k, inside, TYPE)
        step = tl.load(grids + 3 * k, mask=inside, other=0.0)
        varying = sum_before(ends, last + 2 * num_tiles) - sum_before(ends, first + 2 * num_tiles)
        is_uniform = (varying == 0) & (low == high)
        decided = decide(
            count, body, outliers, specials, step.to(tl.float64), is_uniform, low, TYPE
        )
        end = put_plan(plan, sizes, k, inside, decided, end)


@triton.jit
def fits(row, room):
    """True if the payload of a row of a plan ends within ``room`` bytes."""
    return tl.load(row + OFFSET) + padded(tl.load(row + SIZE)) <= room


@triton.jit
def store_header(payload, row):
    """Write the 24 bytes of a header at ``payload`` (uint8, 8-byte aligned) from a row of a plan."""
    words = payload.to(tl.pointer_type(tl.int64))
    tl.store(words, tl.load(row + MODE) | (tl.load(row + OUTLIERS) << 32))
    tl.store(words + 1, tl.load(row + STEP))
    tl.store(words + 2, tl.load(row + BODY))


@triton.jit
def store_outliers(payload, row, address, position, special, before, TYPE: tl.constexpr):
    """Append the positions and values of outliers, where ``special``, after ``before`` earlier ones."""
    count = tl.load(row + OUTLIERS)
    positions_at = HEADER_NBYTES + tl.load(row + BODY)
    chosen = special.to(tl.int64)
    rank = before + tl.cumsum(chosen, axis=0) - chosen
    # if values changed after they were counted, nothing may be written past the payload
    special &= rank < count
    positions = (payload + positions_at).to(tl.pointer_type(tl.int32))
    tl.store(positions + rank, position.to(tl.int32), mask=special)
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    source = address.to(tl.pointer_type(tl.uint8)) + position * value_nbytes
    target = payload + positions_at + padded(4 * count) + rank * value_nbytes
    for part in tl.static_range(value_nbytes):
        tl.store(target + part, tl.load(source + part, mask=special, other=0), mask=special)


@triton.jit
def place_outliers(
    payload, row, address, count, tile, stop, first, ends, num_tiles, grid, TYPE: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Append the outliers of the tiles ``[tile, stop)``, ``PART`` values at a time.

    ``first`` is the first tile of the tensor; ``ends`` are those of ``make_plan``.
    """
    is_coded = tl.load(row + MODE) == CODED
    step, inverse, bound = grid
    for t in range(tile, stop):
        both = sum_before(ends, t + num_tiles + 1) - sum_before(ends, t + num_tiles)
        if both > 0:
            earlier = sum_before(ends, t + num_tiles) - sum_before(ends, first + num_tiles)
            before = tl.where(is_coded, earlier >> 32, earlier & 0xFFFFFFFF)
            for part in range(0, TILE, PART):
                position = (t - first) * TILE + part + tl.arange(0, PART)
                values = load_values(address, position, count, 0.0, TYPE, False, False)
                _, holds = quantize_values(values, step, inverse, bound, TYPE)
                finite = tl.abs(values) < float("inf")
                special = (position < count) & tl.where(is_coded, ~holds, ~finite)
                store_outliers(payload, row, address, position, special, before, TYPE)
                before += tl.sum(special.to(tl.int64), axis=0)


@triton.jit
def close_payload(payload, count, row, TYPE: tl.constexpr):
    """Write the header, and zeros as padding after every part."""
    store_header(payload, row)
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    outliers = tl.load(row + OUTLIERS)
    positions = HEADER_NBYTES + tl.load(row + BODY)
    if tl.load(row + MODE) == EXACT:
        used = count * value_nbytes
        store_zeros(payload + HEADER_NBYTES + used, padded(used) - used, 8)
    store_zeros(payload + positions + 4 * outliers, padded(4 * outliers) - 4 * outliers, 8)
    end = positions + padded(4 * outliers) + value_nbytes * outliers
    room = padded(tl.load(row + SIZE))
    for start in range(end, room, 128):
        store_zeros(payload + start, tl.minimum(room - start, 128), 128)


def make_plan(
    tiles: TileTable,
    ends: torch.Tensor,
    fixed_nbytes: torch.Tensor,
    keys: torch.Tensor,
    grids: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the plan, int64 [num_tensors, NUM_FIELDS], and the payload sizes, int64.

    Args:
        tiles: table of the tiles of all tensors.
        ends: int64 [3 * num_tiles], inclusive prefix sums over all tiles: first of the number of 32-bit words
            in the body of each, then of ``outliers << 32 | values that are not finite``, then of 1 for each
            tile that is known to have two different finite values, whose non-finite ones need not be counted.
            The sums continue across all three parts.
        fixed_nbytes: int64 [num_tensors], size of the part of the body that depends on the count alone.
        keys: finite range of each tensor as ``quantize.gpu.finite_range`` stores it.
        grids: ``quantize.gpu.grids.grid_table``.
        dtype: dtype of the tensors.
    """
    num_tensors = tiles.counts.numel()
    device = tiles.counts.device
    plan = torch.empty((num_tensors, NUM_FIELDS.value), dtype=torch.int64, device=device)
    sizes = torch.empty(num_tensors, dtype=torch.int64, device=device)
    plan_kernel[(1,)](
        tiles.counts, tiles.first_tiles, ends, fixed_nbytes, keys, grids, num_tensors,
        plan, sizes, TYPE=TYPES[dtype], LANES=256, num_warps=8,
    )  # fmt: skip
    return plan, sizes
