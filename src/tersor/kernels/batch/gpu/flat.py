"""Flat payloads of a list of tensors in Triton.

Encoding reads every value once (twice for a relative bound): programs quantize tiles of 1024
values, pack each into a slot of worst-case size, and note its words; a running sum over the tiles
and one small program then decide sizes and places; further programs put the words there. Where
tensors are small, so that launches take longer than the work, ``flat_short`` needs two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton.language as tl

from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.gpu.flat_short import are_small, encode_small
from tersor.kernels.pack.blocks.gpu.pack_tile import pack_tile
from tersor.kernels.pack.blocks.gpu.tile import (
    PACK_RUN,
    PLACE_RUN,
    PLACE_WORDS,
    SCAN_VALUES,
    SLOT_NBYTES,
    TILE,
    UNPACK_RUN,
    decode_tile,
    place_tiles,
    slot_of,
)
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES, BitpackLayout
from tersor.kernels.payload.gpu.open import (
    OUTLIER_LANES,
    copy_values,
    open_payload,
    put_outliers,
    store_given_outliers,
)
from tersor.kernels.payload.gpu.plan import (
    CODED,
    CONSTANT,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    close_payload,
    make_plan,
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
from tersor.kernels.quantize.gpu.values import as_compute, store_values
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, bound_table, padded, tile_table
from tersor.types import Bound

_TAIL = tl.constexpr(TAIL_NBYTES)


@jit_kernel(do_not_specialize=["num_tiles"])
def _pack_kernel(
    starts, counts, first_tiles, first_runs, owners, grids, keys, slots, widths, stats,
    num_tiles, TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One program quantizes ``RUN`` tiles of one tensor and packs each into its slot.

    Only a tensor whose values do not vary needs its range after this, so a tile says that its
    values vary, or looks at them once more. Values past the end count as 0, so a last tile that is
    not whole may be looked at without need.
    """
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
    count, address = tl.load(counts + k), tl.load(starts + k)
    grid = load_grid(grids, k)
    begin = first + (run - tl.load(first_runs + k)) * RUN
    stop = tl.minimum(begin + RUN, last)
    for tile in range(begin, stop):
        base = (tile - first) * TILE
        nwords, outliers, differs = pack_tile(
            address, base, count, grid, slot_of(slots, tile), widths + tile * (TILE // BLOCK),
            TYPE, ALIGNED, BLOCK,
        )  # fmt: skip
        specials = 0
        varies = (differs != 0) & (outliers == 0) & (base + TILE <= count)
        if not varies:
            start, limit = (
                address + base * (TYPE.primitive_bitwidth // 8),
                tl.minimum(count - base, TILE),
            )
            specials = examine_tile(start, limit.to(tl.int32), keys + 2 * k, TYPE, SCAN_VALUES)
        tl.store(stats + tile, nwords.to(tl.int64))
        tl.store(stats + num_tiles + tile, (outliers.to(tl.int64) << 32) | specials)
        # not one mark per tensor: thousands of stores to one place take 100 us
        tl.store(stats + 2 * num_tiles + tile, varies.to(tl.int64))


@jit_kernel()
def _place_kernel(
    counts, first_tiles, run_owners, first_runs, slots, widths, ends, plan, out,
    BLOCK: tl.constexpr, RUN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program puts ``RUN`` tiles of one tensor, if it is coded, into its payload."""
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(run_owners + run)
    row = plan + k * NUM_FIELDS
    if tl.load(row + MODE) == CODED:
        first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
        tile = first + (run - tl.load(first_runs + k)) * RUN
        stop = tl.minimum(tile + RUN, last)
        body = out + tl.load(row + OFFSET) + HEADER_NBYTES
        count = tl.load(counts + k)
        place_tiles(body, count, tile, stop, first, last, ends, slots, widths, BLOCK, RUN, PART)


@jit_kernel(do_not_specialize=["num_tiles"])
def _finish_kernel(
    starts, counts, first_tiles, grids, ends, plan, num_tiles, out, TYPE: tl.constexpr
):
    """Program (k, p) does what is left of every p-th tile of tensor k; the first writes the header."""
    k = tl.program_id(0)
    row = plan + k * NUM_FIELDS
    payload = out + tl.load(row + OFFSET)
    count, address = tl.load(counts + k), tl.load(starts + k)
    first, last = tl.load(first_tiles + k), tl.load(first_tiles + k + 1)
    finish_tiles(
        payload, row, address, count, first, last, ends, num_tiles, load_grid(grids, k), TYPE, TILE,
        SCAN_VALUES,
    )  # fmt: skip
    if tl.program_id(1) == 0:
        close_payload(payload, count, row, TYPE)


@cached_on_stream
def _fixed_nbytes(numels: tuple[int, ...], block: int, device: torch.device) -> torch.Tensor:
    layouts = [BitpackLayout(numel, block) for numel in numels]
    numbers = [layout.words_start + TAIL_NBYTES for layout in layouts]
    return to_device_async(numbers, torch.int64, device)


@dataclass(frozen=True, slots=True)
class _Packed:
    """Tiles in their slots, their widths, and the running sums ``make_plan`` takes."""

    slots: torch.Tensor
    widths: torch.Tensor
    ends: torch.Tensor


def _pack(
    numels: tuple[int, ...], starts: torch.Tensor, grids: torch.Tensor, keys: torch.Tensor,
    dtype: torch.dtype, aligned: bool, block: int,
) -> _Packed:  # fmt: skip
    """Quantize and pack all tiles; note which tensors vary, and the range of the others."""
    device = starts.device
    tiles = tile_table(numels, TILE_VALUES, device)
    runs = tile_table(numels, PACK_RUN * TILE_VALUES, device)
    slots = torch.empty(tiles.num_tiles * SLOT_NBYTES, dtype=torch.uint8, device=device)
    widths = torch.empty(tiles.num_tiles * (TILE_VALUES // block), dtype=torch.uint8, device=device)
    stats = torch.empty(3 * tiles.num_tiles, dtype=torch.int64, device=device)
    _pack_kernel[(runs.num_tiles,)](
        starts, tiles.counts, tiles.first_tiles, runs.first_tiles, runs.owners, grids, keys,
        slots, widths, stats, tiles.num_tiles, TYPE=TYPES[dtype], ALIGNED=aligned,
        BLOCK=block, RUN=PACK_RUN, num_warps=1,
    )  # fmt: skip
    return _Packed(slots, widths, stats.cumsum(0))


def encode_flat(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    encoder: BitpackEncoder,
    with_ranges: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, None, torch.Tensor | None]:
    """Encode contiguous tensors of one dtype and device into one buffer, without waiting.

    Args:
        xs: what to encode.
        bounds: one per tensor.
        encoder: without bases.
        with_ranges: find the ranges also of small tensors, which takes a launch of its own.

    Returns:
        buffer: uint8, payloads back to back, each padded to 8 bytes; what follows is not written.
        sizes: int64 [len(xs)], bytes of each payload.
        needed: None: every form of a payload is known.
        keys: the ranges of the tensors if a bound is relative; None for small tensors unless asked.
    """
    device, dtype, block = xs[0].device, xs[0].dtype, encoder.block
    numels = tuple(x.numel() for x in xs)
    aligned = are_aligned(xs)
    starts = addresses(xs, device)
    limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
    fixed = _fixed_nbytes(numels, block, device)
    capacity = sum(exact_nbytes(numel * dtype.itemsize) for numel in numels)
    out = torch.empty(capacity, dtype=torch.uint8, device=device)
    is_small, is_relative = are_small(numels), any(b.kind == "relative" for b in bounds)
    keys = None
    if not is_small or (with_ranges and is_relative):
        keys = torch.zeros(2 * len(xs), dtype=key_dtype(dtype), device=device)
    with torch.cuda.device_of(xs[0]):
        if is_relative and keys is not None:
            fold_ranges(starts, tile_table(numels, RANGE_TILE, device), keys, dtype, aligned)
        if is_small or keys is None:
            sizes = encode_small(numels, starts, limits, fixed, dtype, aligned, block, out)
            return out, sizes, None, keys if is_relative else None
        grids = grid_table(keys, limits, dtype)
        packed = _pack(numels, starts, grids, keys, dtype, aligned, block)
        tiles = tile_table(numels, TILE_VALUES, device)
        plan, sizes = make_plan(tiles, packed.ends, fixed, keys, grids, dtype)
        runs = tile_table(numels, PLACE_RUN * TILE_VALUES, device)
        _place_kernel[(runs.num_tiles,)](
            tiles.counts, tiles.first_tiles, runs.owners, runs.first_tiles, packed.slots,
            packed.widths, packed.ends, plan, out, BLOCK=block, RUN=PLACE_RUN, PART=PLACE_WORDS, num_warps=4,
        )  # fmt: skip
        _finish_kernel[(len(xs), programs_per_tensor(numels, TILE_VALUES, 1))](
            starts, tiles.counts, tiles.first_tiles, grids, packed.ends, plan, tiles.num_tiles,
            out, TYPE=TYPES[dtype], num_warps=1,
        )  # fmt: skip
    return out, sizes, None, keys if is_relative else None


@jit_kernel(do_not_specialize=["buffer", "status"])
def _decode_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, first_runs, owners, status,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    RUN: tl.constexpr, WITH_OUTLIERS: tl.constexpr,
):  # fmt: skip
    """One program decodes ``RUN`` tiles of one tensor; their outliers too if ``WITH_OUTLIERS``.

    It then looks at all outliers of the tensor, so that is for small ones. Bad bytes set the
    tensor's ``status``.
    """
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    num_tiles = tl.load(first_tiles + k + 1) - tl.load(first_tiles + k)
    count, address = tl.load(counts + k), tl.load(targets + k)
    payload, payload_nbytes = buffer + tl.load(offsets + k), tl.load(sizes + k)
    mode, number, body_nbytes, _, good = open_payload(payload, payload_nbytes, count, TYPE)
    begin = (run - tl.load(first_runs + k)) * RUN
    stop = tl.minimum(begin + RUN, num_tiles)
    fixed = padded(4 * (num_tiles + 1)) + padded((count + BLOCK - 1) // BLOCK) + _TAIL
    good = good & ((mode != CODED) | (body_nbytes >= fixed))
    if not good:
        tl.atomic_or(status + k, 1)
    body = payload + HEADER_NBYTES
    for local in range(begin, tl.where(good & (mode == CODED), stop, begin)):
        decode_tile(
            body, body_nbytes, count, local, num_tiles, as_compute(number, TYPE), address,
            status + k, TYPE, ALIGNED, BLOCK, ROWS,
        )  # fmt: skip
    end = tl.minimum(stop * TILE, count)
    if good & (mode == CONSTANT):
        for start in range(begin * TILE, end, 128):
            values = as_compute(tl.zeros([128], dtype=tl.float64) + number, TYPE)
            position = start + tl.arange(0, 128)
            store_values(address, position, values, count, TYPE, False, False)
    elif good & (mode != CODED):
        copy_values(body.to(tl.int64), address, begin * TILE, end, TYPE)
    if WITH_OUTLIERS:
        # outliers go over what other threads have just stored
        tl.debug_barrier()
        store_given_outliers(
            payload, payload_nbytes, count, address, begin * TILE, end, 0, 1, status + k, TYPE,
            OUTLIER_LANES,
        )  # fmt: skip


def decode_flat(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    encoder: BitpackEncoder,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], where each starts, counted from the start of the buffer; for one
            that lies elsewhere, the difference of their addresses. Trusted.
        sizes: int64 [len(outs)], bytes of each. Trusted.
        outs: what to write.
        encoder: what wrote them.
        status: zeros to return with the result in it; new ones by default.

    Returns:
        int32 [len(outs)]: 0, or not 0 where a payload is malformed, whose tensor is then undefined.
    """
    device, dtype = buffer.device, outs[0].dtype
    numels = tuple(y.numel() for y in outs)
    tiles = tile_table(numels, TILE_VALUES, device)
    if status is None:
        status = torch.zeros(len(outs), dtype=torch.int32, device=device)
    targets = addresses(outs, device)
    is_small = are_small(numels)
    run = 1 if is_small else UNPACK_RUN
    runs = tile_table(numels, run * TILE_VALUES, device)
    with torch.cuda.device_of(buffer):
        _decode_kernel[(runs.num_tiles,)](
            buffer, offsets, sizes, targets, tiles.counts, tiles.first_tiles, runs.first_tiles,
            runs.owners, status, TYPE=TYPES[dtype], ALIGNED=are_aligned(outs), BLOCK=encoder.block,
            ROWS=TILE_VALUES // encoder.block, RUN=run, WITH_OUTLIERS=is_small, num_warps=1,
        )  # fmt: skip
        if not is_small:
            put_outliers(buffer, offsets, sizes, targets, tiles.counts, dtype, status, max(numels))
    return status
