"""Decoding of rows payloads of a list of matrices in Triton, without waiting.

Heads are read first. Then the indices and the symbols of the distinct rows are decoded concurrently, and
one pass gathers the values of all rows. Nothing in the bytes is trusted before it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.gpu.rows_open import (
    BODY,
    FORM,
    LOW,
    MALFORMED,
    MODE,
    NBITS,
    NUM_COLUMNS,
    NUMBER,
    PLAN_COLUMNS,
    REFS,
    UNIQUE,
    open_payloads,
)
from tersor.kernels.batch.gpu.rows_plan import CODED_INDEX, ROWS_HEAD
from tersor.kernels.entropy.rans.gpu.decode_streams import (
    Bodies,
    OpenBodies,
    decode_bytes,
    decode_shorts,
    open_bodies,
)
from tersor.kernels.pack.fields.gpu import take_fields
from tersor.kernels.payload.gpu.open import copy_values
from tersor.kernels.payload.gpu.plan import CODED, CONSTANT, EXACT
from tersor.kernels.quantize.gpu.values import as_compute, as_float, store_values
from tersor.kernels.rows.dedup.gpu.numbers import SCAN_STEP, short_options
from tersor.kernels.rows.dedup.gpu.slots import ROWS_PER_TILE, member_tiles
from tersor.kernels.rows.gpu.index import fields_nbytes
from tersor.kernels.rows.gpu.matrices import MatrixList, index_symbols, matrix_list, shapes_of
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, sum_before_in_tensor, sum_tiles
from tersor.kernels.runtime.side_stream import fork_join
from tersor.kernels.runtime.workspace import Layout

_TILE_VALUES: Final = 4096


@triton.jit
def _load_highs(plan_row, symbols, row, inside, HAS_SYMBOLS: tl.constexpr):
    """Return 0 for a new row, else 1 plus the high bits of the row's number."""
    is_coded = HAS_SYMBOLS and tl.load(plan_row + FORM) == CODED_INDEX
    if is_coded:
        high = tl.load(symbols + row, mask=inside, other=0).to(tl.int32)
    else:
        address = tl.load(plan_row + BODY) + ROWS_HEAD
        marks = address.to(tl.pointer_type(tl.int32))
        word = tl.load(marks + (row >> 5), mask=inside, other=0)
        high = 1 - ((word >> (row & 31)) & 1)
    return high


@jit_kernel(do_not_specialize=["num_matrices"])
def _count_kernel(
    num_rows, first_tiles, owners, plan, starts, num_matrices, symbols, num_new,
    HAS_SYMBOLS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program counts the new rows of a tile."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    plan_row = plan + k * NUM_COLUMNS
    found = tl.full((), 0, tl.int32)
    if tl.load(plan_row + MODE) == CODED:
        row = (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)
        inside = row < tl.load(num_rows + k)
        own = index_symbols(symbols, starts, num_matrices, k, HAS_SYMBOLS)
        high = _load_highs(plan_row, own, row, inside, HAS_SYMBOLS)
        found = tl.sum((inside & (high == 0)).to(tl.int32), axis=0)
    tl.store(num_new + tile, found.to(tl.int64))


@jit_kernel()
def _sum_kernel(first_tiles, ends, LANES: tl.constexpr):
    """One program replaces the new rows of the tiles of one matrix by their prefix sums."""
    sum_tiles(ends, first_tiles, tl.program_id(0), LANES)


@triton.jit
def _join_tile(k, row, rows, before, plan_row, symbols, index, status, HAS_SYMBOLS: tl.constexpr):
    """Assemble the numbers of rows of matrix ``k``; impossible ones become 0 and set the status.

    ``before`` new rows come earlier. With too many new rows, a number would be too large; with too few, a
    reference would be missing. Returns how many of the rows are new.
    """
    inside = row < rows
    high = _load_highs(plan_row, symbols, row, inside, HAS_SYMBOLS)
    is_new = inside & (high == 0)
    end = before + tl.cumsum(is_new.to(tl.int32), axis=0)
    unique, nbits = tl.load(plan_row + UNIQUE), tl.load(plan_row + NBITS).to(tl.int32)
    num_refs, place = rows - unique, row - end
    known = inside & ~is_new & (place < num_refs)
    packed = tl.load(plan_row + REFS).to(tl.pointer_type(tl.int32))
    num_words = fields_nbytes(num_refs, nbits) // 4
    bit = place.to(tl.int64) * nbits
    low = take_fields(packed, num_words, bit, nbits, known & (nbits > 0))
    number = tl.where(is_new, end - 1, ((high - 1) << nbits) | low)
    wrong = inside & ((number < 0) | (number >= unique) | ~(is_new | known))
    tl.store(index + row, tl.where(wrong, 0, number), mask=inside)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.atomic_or(status + k, MALFORMED)
    return tl.sum(is_new.to(tl.int32), axis=0)


@jit_kernel(do_not_specialize=["num_matrices"])
def _join_kernel(
    num_rows, first_tiles, owners, first_rows, plan, starts, num_matrices, symbols, ends, index,
    status, HAS_SYMBOLS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program assembles the numbers of a tile of rows."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    plan_row = plan + k * NUM_COLUMNS
    if tl.load(plan_row + MODE) == CODED:
        begin = tl.load(first_tiles + k)
        row = (tile - begin).to(tl.int32) * TILE + tl.arange(0, TILE)
        own = index_symbols(symbols, starts, num_matrices, k, HAS_SYMBOLS)
        before = sum_before_in_tensor(ends, begin, tile).to(tl.int32)
        _join_tile(
            k, row, tl.load(num_rows + k), before, plan_row, own, index + tl.load(first_rows + k),
            status, HAS_SYMBOLS,
        )  # fmt: skip


@jit_kernel(do_not_specialize=["num_matrices"])
def _join_short_kernel(
    num_rows, first_rows, plan, starts, num_matrices, symbols, index, status,
    HAS_SYMBOLS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program assembles the numbers of all rows of one matrix, tile after tile."""
    k = tl.program_id(0)
    plan_row = plan + k * NUM_COLUMNS
    if tl.load(plan_row + MODE) == CODED:
        own = index_symbols(symbols, starts, num_matrices, k, HAS_SYMBOLS)
        rows, index = tl.load(num_rows + k), index + tl.load(first_rows + k)
        before = tl.full((), 0, tl.int32)
        for start in range(0, rows.to(tl.int32), TILE):
            row = start + tl.arange(0, TILE)
            before += _join_tile(k, row, rows, before, plan_row, own, index, status, HAS_SYMBOLS)


@triton.jit
def _put_plain(plan_row, mode, address, begin, end, TYPE: tl.constexpr, LANES: tl.constexpr):
    """Write the values ``[begin, end)`` of a matrix that is constant or stored exactly."""
    if mode == EXACT:
        copy_values(tl.load(plan_row + BODY), address, begin, end, TYPE)
    elif mode == CONSTANT:
        number = tl.load(plan_row + NUMBER).to(tl.float64, bitcast=True)
        values = as_compute(tl.zeros([LANES], dtype=tl.float64) + number, TYPE)
        for start in range(begin, end, LANES):
            position = start + tl.arange(0, LANES)
            store_values(address, position, values, end, TYPE, False, False)


@jit_kernel()
def _gather_kernel(
    targets, numels, num_rows, first_tiles, owners, first_rows, width, plan, starts, symbols,
    index, rooms, nbytes, status, TYPE: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program writes ``ROWS`` rows of ``COLUMNS`` columns from the symbols of the distinct rows.

    ``WHOLE`` says that ``COLUMNS`` divides the width. Rows of a matrix that is not coded are written by the
    programs of the first columns. The first program of a matrix checks that the coder read its whole body.
    """
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    plan_row = plan + k * NUM_COLUMNS
    mode, address = tl.load(plan_row + MODE), tl.load(targets + k)
    first_row, count = (tile - tl.load(first_tiles + k)) * ROWS, tl.load(num_rows + k)
    if mode == CODED:
        numel = tl.load(numels + k)
        # beyond the end the last row is written again, because a mask would split wide stores
        row = tl.minimum(first_row + tl.arange(0, ROWS), count - 1)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        number = tl.load(index + tl.load(first_rows + k) + row).to(tl.int64)
        source = symbols + tl.load(starts + k)
        places = source + (number[:, None] * width + column[None, :])
        position = row[:, None] * width + column[None, :]
        if ALIGNED:
            # not 16, so that a thread loads as many symbols as it stores float32 values
            places = tl.multiple_of(places, (1, 4))
        if WHOLE:
            found = tl.load(places)
        else:
            known = (column < width)[None, :] & (row >= 0)[:, None]
            found = tl.load(places, mask=known, other=0)
            position = tl.where(known, position, numel)
        code = found.to(tl.int32) + tl.load(plan_row + LOW).to(tl.int32)
        step = tl.load(plan_row + NUMBER).to(tl.float64, bitcast=True)
        values = as_float(code, TYPE) * as_compute(step, TYPE)
        store_values(address, position, values, numel, TYPE, ALIGNED, WHOLE)
        is_first = (first_row == 0) & (tl.program_id(1) == 0)
        if is_first & (tl.load(rooms + k) != tl.load(nbytes + k)):
            tl.atomic_or(status + k, MALFORMED)
    elif tl.program_id(1) == 0:
        end = tl.minimum(first_row + ROWS, count) * width
        _put_plain(plan_row, mode, address, first_row * width, end, TYPE, 512)


@lru_cache(maxsize=64)
def _layout(
    num: int, num_rows: int, num_tiles: int, num_indices: int, symbols_nbytes: int
) -> Layout:
    return Layout.of(
        {
            "plan": (torch.int64, num * PLAN_COLUMNS),
            "addresses": (torch.int64, num),
            "rooms": (torch.int64, num),
            "counts": (torch.int64, num),
            "alphabets": (torch.int32, num),
            "index_addresses": (torch.int64, num_indices),
            "index_rooms": (torch.int64, num_indices),
            "index_counts": (torch.int64, num_indices),
            "index_alphabets": (torch.int32, num_indices),
            "symbols": (torch.uint8, symbols_nbytes),
            "ends": (torch.int64, num_tiles),
            "index": (torch.int32, num_rows),
        }
    )


def _bodies(
    held: Mapping[str, torch.Tensor], prefix: str, capacities: tuple[int, ...], num_narrow: int,
    most_wide: int,
) -> Bodies:  # fmt: skip
    names = ("addresses", "rooms", "counts", "alphabets")
    addresses, rooms, counts, alphabets = (held[prefix + name] for name in names)
    return Bodies(addresses, rooms, counts, alphabets, capacities, num_narrow, most_wide=most_wide)


def _join_index(
    matrices: MatrixList, plan: torch.Tensor, symbols: torch.Tensor, ends: torch.Tensor,
    index: torch.Tensor, status: torch.Tensor,
) -> None:  # fmt: skip
    """Write the number of each row's distinct row to ``index``."""
    rows, num, has_symbols = matrices.rows, len(matrices), matrices.num_indices > 0
    tiles = rows.tiles
    held = plan, matrices.starts, num, symbols
    if rows.is_short:
        _join_short_kernel[(num,)](
            tiles.counts, rows.first_rows, *held, index, status, HAS_SYMBOLS=has_symbols,
            **short_options(rows),
        )  # fmt: skip
        return
    shape = tiles.counts, tiles.first_tiles, tiles.owners
    _count_kernel[(tiles.num_tiles,)](
        *shape, *held, ends, HAS_SYMBOLS=has_symbols, TILE=ROWS_PER_TILE
    )
    _sum_kernel[(num,)](tiles.first_tiles, ends, LANES=SCAN_STEP)
    _join_kernel[(tiles.num_tiles,)](
        *shape, rows.first_rows, *held, ends, index, status, HAS_SYMBOLS=has_symbols,
        TILE=ROWS_PER_TILE,
    )  # fmt: skip


def _gather(
    matrices: MatrixList, plan: torch.Tensor, symbols: torch.Tensor, index: torch.Tensor,
    opened: OpenBodies, outs: Sequence[torch.Tensor], status: torch.Tensor,
) -> None:  # fmt: skip
    """Write the values of all rows of all matrices, and check the sizes of the symbols' bodies."""
    rows, dtype, aligned = matrices.rows, outs[0].dtype, are_aligned(outs)
    targets = addresses(outs, plan.device)
    for group in matrices.groups:
        num_rows, columns = group.tile(_TILE_VALUES, group.width)
        whole = group.width % columns == 0
        tiles = member_tiles(group.rows_per_matrix, num_rows, plan.device)
        _gather_kernel[(tiles.num_tiles, ceil_div(group.width, columns))](
            targets, matrices.numels, rows.tiles.counts, tiles.first_tiles, tiles.owners,
            rows.first_rows, group.width, plan, matrices.starts, symbols, index,
            opened.bodies.rooms, opened.nbytes, status, TYPE=TYPES[dtype],
            ALIGNED=aligned and whole and columns % 16 == 0, WHOLE=whole, ROWS=num_rows,
            COLUMNS=columns, num_warps=4,
        )  # fmt: skip


def decode_rows_list(
    buffer: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor, outs: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Decode payloads into contiguous matrices of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], the start of each payload relative to ``buffer``; a payload elsewhere
            has the difference of the addresses. Not checked.
        sizes: int64 [len(outs)], bytes of each payload. Not checked.
        outs: matrices to write.

    Returns:
        int32 [len(outs)]: 0 if the matrix is decoded. Otherwise the matrix is undefined: 1 if its payload is
        malformed, 2 if it has outliers, escapes or a wide alphabet, which the composition decodes.
    """
    device, num = buffer.device, len(outs)
    matrices = matrix_list(shapes_of(outs), device)
    num_tiles, num_indices = matrices.rows.tiles.num_tiles, matrices.num_indices
    held = _layout(num, matrices.num_rows, num_tiles, num_indices, matrices.nbytes).carve(device)
    plan, symbols, index, ends = held["plan"], held["symbols"], held["index"], held["ends"]
    status = torch.empty(num, dtype=torch.int32, device=device)
    most_wide = matrices.most_index_symbols
    streams = _bodies(held, "", matrices.symbols[:num], num, most_wide)
    indices = None
    if num_indices:
        indices = _bodies(held, "index_", matrices.symbols[num:], 0, most_wide)
    with torch.cuda.device_of(buffer):
        open_payloads(
            matrices, buffer, offsets, sizes, outs[0].dtype, plan, streams, indices, status
        )
        # two chains of dependent steps, neither of which alone keeps a GPU busy
        with fork_join(device) as index_chain:
            opened = open_bodies(streams, status)
            decode_bytes(opened, symbols, matrices.starts, status)
            with index_chain:
                if indices is not None:
                    starts = matrices.starts[num:]
                    decode_shorts(open_bodies(indices, status), symbols, starts, status)
                _join_index(matrices, plan, symbols, ends, index, status)
        _gather(matrices, plan, symbols, index, opened, outs, status)
    return status
