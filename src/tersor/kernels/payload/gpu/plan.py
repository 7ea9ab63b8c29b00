"""Payloads of a list of tensors in Triton: sizes, places and headers, decided on the device.

The plan has one row per tensor; compacting kernels read it to know where their bytes go.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.kernels.payload import layout
from tersor.kernels.quantize.gpu.finite_range import load_range
from tersor.kernels.quantize.gpu.grids import is_step
from tersor.kernels.quantize.gpu.values import load_values, quantize_values
from tersor.kernels.runtime.gpu.element_types import F16, F32, F64, TYPES
from tersor.kernels.runtime.gpu.tiles import TileTable, padded, store_zeros, tile_end

HEADER_NBYTES = tl.constexpr(layout.HEADER.size)
EXACT, CODED, CONSTANT = (
    tl.constexpr(mode) for mode in (layout.EXACT, layout.CODED, layout.CONSTANT)
)
_LEAST_LOG2 = tl.constexpr(layout.MAX_VALUES_PER_BYTE_LOG2)

MODE, OFFSET, BODY, OUTLIERS, STEP, SIZE, NUM_FIELDS = (tl.constexpr(k) for k in range(7))
"""Columns of a plan, int64: how the tensor is stored, where its payload starts in the buffer, bytes
of the body, number of outliers, bits of the float64 step, bytes of the payload."""

OUTLIER_LANES = tl.constexpr(128)
"""Outliers that a warp writes at a time."""


@triton.jit
def decide(count, body, outliers, specials, step, is_uniform, low, TYPE: tl.constexpr):
    """Decide how tensors are stored, all int64 or float64.

    Args:
        count: values of each.
        body: bytes of its coded body.
        outliers: values that have no code.
        specials: values that are not finite.
        step: 0 if no grid can keep the bound.
        is_uniform: whether all finite values are equal, and there are some.
        low: the smallest of them.
        TYPE: of the values.

    Returns:
        Mode, bytes of the body, outliers, bits of the number in the header, bytes of the payload.
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
    """Store what was decided of tensors ``k``, whose payloads follow each other from ``end`` on.

    Returns where the payloads after them start.
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


@triton.jit(do_not_specialize=["num_tensors"])
def plan_kernel(
    counts, first_tiles, ends, fixed_nbytes, keys, grids, num_tensors, plan, sizes,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program decides mode, size and place of every payload, in order."""
    num_tiles = tl.load(first_tiles + num_tensors)
    end = tl.zeros([1], dtype=tl.int64)
    for start in range(0, num_tensors, LANES):
        k = start + tl.arange(0, LANES)
        inside = k < num_tensors
        count = tl.load(counts + k, mask=inside, other=0)
        first = tl.load(first_tiles + k, mask=inside, other=0)
        last = tl.load(first_tiles + k + 1, mask=inside, other=0)
        words = tile_end(ends, last) - tile_end(ends, first)
        body = tl.load(fixed_nbytes + k, mask=inside, other=0) + padded(4 * words)
        both = tile_end(ends, last + num_tiles) - tile_end(ends, first + num_tiles)
        outliers, specials = both >> 32, both & 0xFFFFFFFF
        low, high = load_range(keys, k, inside, TYPE)
        step = tl.load(grids + 3 * k, mask=inside, other=0.0)
        varying = tile_end(ends, last + 2 * num_tiles) - tile_end(ends, first + 2 * num_tiles)
        is_uniform = (varying == 0) & (low == high)
        decided = decide(
            count, body, outliers, specials, step.to(tl.float64), is_uniform, low, TYPE
        )
        end = put_plan(plan, sizes, k, inside, decided, end)


@triton.jit
def store_header(payload, row):
    """Write the 24 bytes of a header at ``payload`` (uint8, 8-byte aligned) from a row of a plan."""
    words = payload.to(tl.pointer_type(tl.int64))
    tl.store(words, tl.load(row + MODE) | (tl.load(row + OUTLIERS) << 32))
    tl.store(words + 1, tl.load(row + STEP))
    tl.store(words + 2, tl.load(row + BODY))


@triton.jit
def store_outliers(payload, row, address, position, special, before, TYPE: tl.constexpr):
    """Append positions and values where ``special``; ``before`` outliers come earlier."""
    count = tl.load(row + OUTLIERS)
    positions_at = HEADER_NBYTES + tl.load(row + BODY)
    chosen = special.to(tl.int64)
    rank = before + tl.cumsum(chosen, axis=0) - chosen
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
    """Append the outliers of tiles ``[tile, stop)`` that have some, ``PART`` values at a time.

    ``first`` is the tensor's first tile and ``ends`` what ``make_plan`` takes.
    """
    is_coded = tl.load(row + MODE) == CODED
    step, inverse, bound = grid
    for t in range(tile, stop):
        both = tile_end(ends, t + num_tiles + 1) - tile_end(ends, t + num_tiles)
        if both > 0:
            earlier = tile_end(ends, t + num_tiles) - tile_end(ends, first + num_tiles)
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
    """Write the header, and zeros wherever padding follows a part."""
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


@triton.jit
def copy_values(source, target, begin, end, TYPE: tl.constexpr):
    """Copy values ``[begin, end)`` between two addresses, bit for bit."""
    integer: tl.constexpr = tl.int64 if TYPE == F64 else (tl.int32 if TYPE == F32 else tl.int16)
    old, new = source.to(tl.pointer_type(integer)), target.to(tl.pointer_type(integer))
    for start in range(begin, end, 512):
        i = start + tl.arange(0, 512)
        tl.store(new + i, tl.load(old + i, mask=i < end, other=0), mask=i < end)


@triton.jit
def _is_constant(value, TYPE: tl.constexpr):
    """True if a float64 is a finite value of the dtype of ``TYPE``."""
    single = value.to(tl.float32)
    finite = tl.abs(value) < float("inf")
    if TYPE == F64:
        return finite
    elif TYPE == F32:
        return finite & (tl.abs(single) < float("inf")) & (single.to(tl.float64) == value)
    elif TYPE == F16:
        half = single.to(tl.float16)
        return finite & (tl.abs(half) < float("inf")) & (half.to(tl.float64) == value)
    else:
        bits = single.to(tl.int32, bitcast=True)
        exact = (single.to(tl.float64) == value) & ((bits & 0xFFFF) == 0)
        return finite & exact & ((bits & 0x7FFFFFFF) < 0x7F800000)


@triton.jit
def open_payload(payload, size, count, TYPE: tl.constexpr):
    """Return mode, step, body bytes, number of outliers, and whether these can be.

    Checks all that does not depend on the codec; what is not good must not be used.
    """
    words = payload.to(tl.pointer_type(tl.int64))
    complete = size >= HEADER_NBYTES
    head = tl.load(words, mask=complete, other=-1)
    number = tl.load(words + 1, mask=complete, other=0).to(tl.float64, bitcast=True)
    body = tl.load(words + 2, mask=complete, other=-1)
    mode, outliers = head & 0xFFFFFFFF, (head >> 32) & 0xFFFFFFFF
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    possible = complete & (body >= 0) & (body <= size) & (body % 8 == 0) & (outliers <= count)
    end = HEADER_NBYTES + body + padded(4 * outliers) + padded(value_nbytes * outliers)
    possible = possible & (end <= size) & (tl.abs(number) < float("inf"))
    is_exact = (mode == EXACT) & (body == padded(count * value_nbytes)) & (outliers == 0)
    is_coded = (mode == CODED) & (count > 0) & is_step(number, TYPE)
    is_constant = (mode == CONSTANT) & (count > 0) & (body == 0) & _is_constant(number, TYPE)
    return mode, number, body, outliers, possible & (is_exact | is_coded | is_constant)


@triton.jit
def store_given_outliers(
    payload, payload_nbytes, count, target, begin, end, part, num_parts, status,
    TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write those outliers of a payload whose positions lie in ``[begin, end)``.

    Every ``num_parts``-th run of ``LANES`` outliers, and of bytes that follow them, is looked at.
    Sets ``status`` if something in it is wrong; a payload that cannot be opened is not read.
    """
    _, _, body, outliers, good = open_payload(payload, payload_nbytes, count, TYPE)
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    target = target.to(tl.pointer_type(tl.uint8))
    # a payload that is not good is reported by whoever decodes it
    outliers = tl.where(good, outliers, 0)
    positions = (payload + HEADER_NBYTES + body).to(tl.pointer_type(tl.uint32))
    values = payload + HEADER_NBYTES + body + padded(4 * outliers)
    stride = num_parts * LANES
    for start in range(part * LANES, outliers, stride):
        i = start + tl.arange(0, LANES)
        inside = i < outliers
        position = tl.load(positions + i, mask=inside, other=0).to(tl.int64)
        previous = tl.load(positions + i - 1, mask=inside & (i > 0), other=0).to(tl.int64)
        wrong = inside & ((position >= count) | ((position <= previous) & (i > 0)))
        if tl.max(wrong.to(tl.int32), axis=0) > 0:
            tl.atomic_or(status, 1)
        chosen = inside & ~wrong & (position >= begin) & (position < end)
        for byte_of in tl.static_range(value_nbytes):
            byte = tl.load(values + i * value_nbytes + byte_of, mask=chosen, other=0)
            tl.store(target + position * value_nbytes + byte_of, byte, mask=chosen)
    used = HEADER_NBYTES + body + padded(4 * outliers) + padded(value_nbytes * outliers)
    used = tl.where(good, used, payload_nbytes)
    for start in range(used + part * LANES, payload_nbytes, stride):
        i = start + tl.arange(0, LANES)
        left_over = tl.load(payload + i, mask=i < payload_nbytes, other=0)
        if tl.max(left_over.to(tl.int32), axis=0) > 0:
            tl.atomic_or(status, 1)


@triton.jit(do_not_specialize=["buffer", "status"])
def _outliers_kernel(
    buffer, offsets, sizes, targets, counts, status, TYPE: tl.constexpr, LANES: tl.constexpr
):
    """Program (k, p) writes every p-th run of the outliers of tensor k, and looks at what follows."""
    k = tl.program_id(0)
    count = tl.load(counts + k)
    store_given_outliers(
        buffer + tl.load(offsets + k), tl.load(sizes + k), count, tl.load(targets + k), 0, count,
        tl.program_id(1), tl.num_programs(1), status + k, TYPE, LANES,
    )  # fmt: skip


def put_outliers(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    targets: torch.Tensor,
    counts: torch.Tensor,
    dtype: torch.dtype,
    status: torch.Tensor,
    largest: int,
) -> None:
    """Write the exactly stored values of all payloads over the decoded ones.

    ``status`` has one word per payload, which is set where the outliers or what follows are wrong;
    ``largest`` is the number of values of the largest tensor: large ones get more programs.
    """
    programs = max(1, min(64, largest >> 16))
    _outliers_kernel[(counts.numel(), programs)](
        buffer, offsets, sizes, targets, counts, status, TYPE=TYPES[dtype], LANES=OUTLIER_LANES.value,
        num_warps=1,
    )  # fmt: skip


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
        tiles: of the list of tensors.
        ends: int64 [3 * num_tiles], running sum over the words of 32 bits in each tile's body, then
            ``outliers << 32 | values that are not finite``, then 1 for a tile that surely has two
            different finite values.
        fixed_nbytes: int64 [num_tensors], bytes of the body that the count alone decides.
        keys: finite range of each tensor as ``quantize.gpu.finite_range`` keeps it.
        grids: ``quantize.gpu.grids.grid_table``.
        dtype: of the tensors.
    """
    num_tensors = tiles.counts.numel()
    device = tiles.counts.device
    plan = torch.empty((num_tensors, NUM_FIELDS.value), dtype=torch.int64, device=device)
    sizes = torch.empty(num_tensors, dtype=torch.int64, device=device)
    plan_kernel[(1,)](
        tiles.counts, tiles.first_tiles, ends, fixed_nbytes, keys, grids, num_tensors,
        plan, sizes, TYPE=TYPES[dtype], LANES=256, num_warps=8,
        enable_fp_fusion=False,
    )  # fmt: skip
    return plan, sizes
