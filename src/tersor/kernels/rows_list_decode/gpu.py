"""Decoding of the rows payloads of a list of matrices in Triton, without a wait.

Heads are read first, then the index is decoded, then the distinct rows, of which one pass gathers
the values of all rows. What the bytes say is checked before it is relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.bitfields.gpu import take_fields
from tersor.kernels.dedup.gpu import NUMBERED, member_tiles
from tersor.kernels.index_list.gpu import fields_nbytes
from tersor.kernels.matrix_list.gpu import MatrixList, matrices_of, programs_each
from tersor.kernels.payload.gpu import CODED, CONSTANT, EXACT, as_compute, copy_values, tile_end
from tersor.kernels.quantize.gpu import KINDS, as_float, store_values
from tersor.kernels.rans_list.gpu import decode_streams
from tersor.kernels.rows_heads.gpu import (
    BODY,
    FORM,
    LOW,
    MALFORMED,
    MODE,
    NBITS,
    NUM_COLUMNS,
    NUMBER,
    REFS,
    UNIQUE,
    Stream,
    open_payloads,
    open_rows,
)
from tersor.kernels.rows_plan.gpu import CODED_INDEX, ROWS_HEAD
from tersor.kernels.tensor_list.gpu import addresses, are_aligned

_TILE_VALUES: Final = 4096
_COPIED: Final = 1 << 14


@triton.jit
def _load_highs(plan_row, symbols, row, inside):
    """Return 0 for a new row, else one more than the high bits of its number."""
    if tl.load(plan_row + FORM) == CODED_INDEX:
        high = tl.load(symbols + row, mask=inside, other=0).to(tl.int32)
    else:
        address = tl.load(plan_row + BODY) + ROWS_HEAD
        marks = address.to(tl.pointer_type(tl.int32))
        word = tl.load(marks + (row >> 5), mask=inside, other=0)
        high = 1 - ((word >> (row & 31)) & 1)
    return high


@triton.jit
def _count_kernel(
    num_rows, first_tiles, owners, plan, symbol_starts, symbols, num_new, TILE: tl.constexpr
):
    """One program counts the new rows of a tile."""
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    plan_row = plan + k * NUM_COLUMNS
    found = tl.full((), 0, tl.int32)
    if tl.load(plan_row + MODE) == CODED:
        row = (tile - tl.load(first_tiles + k)).to(tl.int32) * TILE + tl.arange(0, TILE)
        inside = row < tl.load(num_rows + k)
        high = _load_highs(plan_row, symbols + tl.load(symbol_starts + k), row, inside)
        found = tl.sum((inside & (high == 0)).to(tl.int32), axis=0)
    tl.store(num_new + tile, found.to(tl.int64))


@triton.jit
def _join_kernel(
    num_rows, first_tiles, owners, first_rows, plan, symbol_starts, symbols, ends, rooms, nbytes,
    index, status, TILE: tl.constexpr,
):  # fmt: skip
    """One program puts the numbers of a tile of rows together; impossible ones become 0.

    Were there too many new rows, a number would be too large; too few, a reference would be missing.
    """
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    plan_row = plan + k * NUM_COLUMNS
    if tl.load(plan_row + MODE) == CODED:
        begin, rows = tl.load(first_tiles + k), tl.load(num_rows + k)
        row = (tile - begin).to(tl.int32) * TILE + tl.arange(0, TILE)
        inside = row < rows
        high = _load_highs(plan_row, symbols + tl.load(symbol_starts + k), row, inside)
        is_new = inside & (high == 0)
        before = (tile_end(ends, tile) - tile_end(ends, begin)).to(tl.int32)
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
        at = tl.load(first_rows + k) + row
        tl.store(index + at, tl.where(wrong, 0, number), mask=inside)
        if tl.max(wrong.to(tl.int32), axis=0) > 0:
            tl.atomic_or(status + k, MALFORMED)
        if (tile == begin) & (tl.load(rooms + k) != tl.load(nbytes + k)):
            tl.atomic_or(status + k, MALFORMED)


@triton.jit
def _gather_kernel(
    targets, numels, num_rows, first_tiles, owners, first_rows, width, plan, code_starts, symbols,
    index, KIND: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program decodes ``ROWS`` rows of ``COLUMNS`` columns from the distinct rows' symbols.

    ``WHOLE`` says that the columns divide the width.
    """
    tile = tl.program_id(0)
    k = tl.load(owners + tile)
    plan_row = plan + k * NUM_COLUMNS
    if tl.load(plan_row + MODE) == CODED:
        row = (tile - tl.load(first_tiles + k)) * ROWS + tl.arange(0, ROWS)
        count, numel = tl.load(num_rows + k), tl.load(numels + k)
        # beyond the end the last row is written again: a mask would cut wide stores into pieces
        row = tl.minimum(row, count - 1)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        number = tl.load(index + tl.load(first_rows + k) + row).to(tl.int64)
        source = symbols + tl.load(code_starts + k)
        places = source + (number[:, None] * width + column[None, :])
        position = row[:, None] * width + column[None, :]
        if ALIGNED:
            # not 16: a thread is to load as many symbols as it stores float32 values
            places = tl.multiple_of(places, (1, 4))
        if WHOLE:
            found = tl.load(places)
        else:
            known = (column < width)[None, :] & (row >= 0)[:, None]
            found = tl.load(places, mask=known, other=0)
            position = tl.where(known, position, numel)
        code = found.to(tl.int32) + tl.load(plan_row + LOW).to(tl.int32)
        step = tl.load(plan_row + NUMBER).to(tl.float64, bitcast=True)
        values = as_float(code, KIND) * as_compute(step, KIND)
        store_values(tl.load(targets + k), position, values, numel, KIND, ALIGNED, WHOLE)


@triton.jit
def _plain_kernel(targets, numels, plan, KIND: tl.constexpr, LANES: tl.constexpr):
    """Program (k, p) writes the p-th share of a matrix that is constant or stored exactly."""
    k, p = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = plan + k * NUM_COLUMNS
    mode, count, address = tl.load(row + MODE), tl.load(numels + k), tl.load(targets + k)
    share = (count + tl.num_programs(1) - 1) // tl.num_programs(1)
    begin = tl.minimum(p * share, count)
    end = tl.minimum(begin + share, count)
    if mode == EXACT:
        copy_values(tl.load(row + BODY), address, begin, end, KIND)
    elif mode == CONSTANT:
        number = tl.load(row + NUMBER).to(tl.float64, bitcast=True)
        values = as_compute(tl.zeros([LANES], dtype=tl.float64) + number, KIND)
        for start in range(begin, end, LANES):
            position = start + tl.arange(0, LANES)
            store_values(address, position, values, end, KIND, False, False)


def _decode_symbols(
    stream: Stream, capacities: tuple[int, ...], out: torch.Tensor, starts: torch.Tensor,
    status: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Decode symbols into ``out`` from ``starts`` on; return the size of each body."""
    found = stream.bodies, stream.rooms, stream.counts, stream.alphabets
    return decode_streams(*found, capacities, out, starts, status)


def _decode_index(
    matrices: MatrixList, plan: torch.Tensor, symbols: torch.Tensor, rooms: torch.Tensor,
    rows_nbytes: torch.Tensor, status: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return the distinct row of each row, int32; compare the sizes of the rows' bodies."""
    rows, tiles, device = matrices.rows, matrices.rows.tiles, status.device
    ends = torch.empty(tiles.num_tiles, dtype=torch.int64, device=device)
    index = torch.empty(sum(rows.nums_rows), dtype=torch.int32, device=device)
    shape = tiles.counts, tiles.first_tiles, tiles.owners
    _count_kernel[(tiles.num_tiles,)](
        *shape, plan, matrices.symbol_starts, symbols, ends, TILE=NUMBERED
    )
    ends.cumsum_(0)
    _join_kernel[(tiles.num_tiles,)](
        *shape, rows.first_rows, plan, matrices.symbol_starts, symbols, ends, rooms, rows_nbytes,
        index, status, TILE=NUMBERED,
    )  # fmt: skip
    return index


def _gather(
    matrices: MatrixList, plan: torch.Tensor, symbols: torch.Tensor, index: torch.Tensor,
    targets: torch.Tensor, outs: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """Write the values of all rows of all coded matrices."""
    rows, dtype, aligned = matrices.rows, outs[0].dtype, are_aligned(outs)
    for group in matrices.groups:
        num_rows, columns = group.tile(_TILE_VALUES)
        whole = group.width % columns == 0
        tiles = member_tiles(group.nums_rows, num_rows, plan.device)
        _gather_kernel[(tiles.num_tiles, triton.cdiv(group.width, columns))](
            targets, matrices.numels, rows.tiles.counts, tiles.first_tiles, tiles.owners,
            rows.first_rows, group.width, plan, matrices.code_starts, symbols, index,
            KIND=KINDS[dtype], ALIGNED=aligned and whole and columns % 16 == 0, WHOLE=whole,
            ROWS=num_rows, COLUMNS=columns, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


def decode_rows_list(
    buffer: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor, outs: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Decode payloads into contiguous matrices of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], where each starts, counted from the start of the buffer; for one
            that lies elsewhere, the difference of their addresses. Trusted.
        sizes: int64 [len(outs)], bytes of each. Trusted.
        outs: what to write.

    Returns:
        int32 [len(outs)]: 0; or, where the matrix is undefined, 1 if its payload is malformed, 2 if
        that has outliers, escapes or a wide alphabet, and must be decoded by the codec itself.
    """
    device, dtype, num = buffer.device, outs[0].dtype, len(outs)
    matrices = matrices_of(outs)
    with torch.cuda.device_of(buffer):
        targets = addresses(outs, device)
        heads = open_payloads(matrices, buffer, offsets, sizes, dtype)
        plan, status = heads.plan, heads.status
        highs = torch.empty(matrices.num_symbols, dtype=torch.int16, device=device)
        index_nbytes = _decode_symbols(
            heads.index, matrices.rows.nums_rows, highs, matrices.symbol_starts, status
        )
        rows = open_rows(matrices, heads, index_nbytes, dtype)
        symbols = torch.empty(matrices.codes_nbytes, dtype=torch.uint8, device=device)
        rows_nbytes = _decode_symbols(
            rows, matrices.capacities, symbols, matrices.code_starts, status
        )
        index = _decode_index(matrices, plan, highs, rows.rooms, rows_nbytes, status)
        _gather(matrices, plan, symbols, index, targets, outs)
        programs = programs_each(num, triton.cdiv(max(matrices.capacities), _COPIED))
        _plain_kernel[(num, programs)](targets, matrices.numels, plan, KIND=KINDS[dtype], LANES=512)
    return status
