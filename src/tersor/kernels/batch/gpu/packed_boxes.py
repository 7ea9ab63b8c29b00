"""Decoding of packed residuals of two or three axes in Triton, without waiting.

A code is the sum of the residuals up to its position along every axis. The payload is read twice, and codes are never
stored: first the residuals of each box are summed along each axis, into its faces. After prefix sums over the faces
(``boxes``), programs unpack the boxes again and add the sums of what lies before them. Sums are taken modulo 2**32, so
their order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.gpu.boxes import (
    BoxTable,
    box_table,
    column_sums,
    open_box,
    plane_sums,
    row_sums,
    sum_faces,
)
from tersor.kernels.batch.gpu.packed_decode import decode_packed, open_packed, store_uncoded
from tersor.kernels.pack.blocks.gpu.seek import codes_at, index_tile
from tersor.kernels.pack.blocks.gpu.tile import TILE, UNPACK_RUN
from tersor.kernels.payload.gpu.open import open_payload, put_outliers
from tersor.kernels.payload.gpu.plan import CODED, HEADER_NBYTES
from tersor.kernels.predict.axes import predicting_shape
from tersor.kernels.quantize.gpu.values import as_compute, dequantize_values, store_values
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, tile_table
from tersor.kernels.runtime.workspace import Layout

_MAX_REGISTERS: Final = 128
"""Per thread: allows 16 warps per multiprocessor and spills 6 words. The compiler would take 240."""


@jit_kernel(do_not_specialize=["buffer", "status"])
def _index_kernel(
    buffer, offsets, sizes, targets, counts, first_tiles, first_runs, owners, index, status,
    TYPE: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One program indexes ``RUN`` tiles of one tensor, or writes its values if it is not coded.

    Malformed bytes set the tensor's ``status``.
    """
    run = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + run)
    first, count = tl.load(first_tiles + k), tl.load(counts + k)
    num_tiles = tl.load(first_tiles + k + 1) - first
    payload = buffer + tl.load(offsets + k)
    mode, number, body_nbytes, good = open_packed(
        payload, tl.load(sizes + k), count, num_tiles, TYPE, BLOCK
    )
    begin = (run - tl.load(first_runs + k)) * RUN
    stop = tl.minimum(begin + RUN, num_tiles)
    if not good:
        tl.atomic_or(status + k, 1)
    own = index + first * (TILE // BLOCK)
    for local in range(begin, tl.where(good & (mode == CODED), stop, begin)):
        index_tile(
            payload + HEADER_NBYTES, body_nbytes, count, local, num_tiles, own, status + k, BLOCK
        )
    if good:
        end = tl.minimum(stop * TILE, count)
        store_uncoded(payload, mode, number, tl.load(targets + k), begin * TILE, end, count, TYPE)


@triton.jit
def _open_coded(
    buffer, offsets, sizes, counts, first_tiles, index, status, k, TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return (body, values, tiles, index) of tensor ``k``, its step, and whether it is coded and indexed.

    A ``BLOCK`` of 0 says that residuals are already decoded: the body is then the address of the tensor's int32
    residuals, taken from ``index``.
    """
    count, payload = tl.load(counts + k), buffer + tl.load(offsets + k)
    if BLOCK == 0:
        mode, number, _, _, good = open_payload(payload, tl.load(sizes + k), count, TYPE)
        coded = tl.load(index + k), count, count, count
    else:
        first = tl.load(first_tiles + k)
        num_tiles = tl.load(first_tiles + k + 1) - first
        mode, number, _, good = open_packed(
            payload, tl.load(sizes + k), count, num_tiles, TYPE, BLOCK
        )
        coded = payload + HEADER_NBYTES, count, num_tiles, index + first * (TILE // BLOCK)
    is_coded = good & (mode == CODED) & (tl.load(status + k) == 0)
    return coded, as_compute(number, TYPE), is_coded


@triton.jit
def _loaded_codes(address, count, position):
    """Return the residuals at ``position`` and the three positions after it; 0 from ``count`` on."""
    places = address.to(tl.pointer_type(tl.int32)) + position
    c0 = tl.load(places, mask=position < count, other=0)
    c1 = tl.load(places + 1, mask=position + 1 < count, other=0)
    c2 = tl.load(places + 2, mask=position + 2 < count, other=0)
    c3 = tl.load(places + 3, mask=position + 3 < count, other=0)
    return c0, c1, c2, c3


@triton.jit
def _plane_codes(
    coded, first, shape, y, x, is_whole, SPLIT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the residuals of rows ``y`` of the plane whose first line is ``first``.

    The result is a tuple for columns ``x``, ``x + 1``, ``x + 2`` and ``x + 3``, with 0 outside the tensor.
    """
    line = first + tl.minimum(y, shape[1] - 1)
    column = tl.minimum(x, (shape[2] - 1) // 4 * 4)
    position = (line * shape[2]).to(tl.int32)[:, None] + column.to(tl.int32)[None, :]
    if BLOCK == 0:
        c0, c1, c2, c3 = _loaded_codes(coded[0], coded[1], position)
    else:
        c0, c1, c2, c3 = codes_at(coded[0], coded[1], coded[2], coded[3], position, SPLIT, BLOCK)
    if not is_whole:
        # the last four of a line may extend into the next line
        inside = (y < shape[1])[:, None] & (x < shape[2])[None, :]
        c0 = tl.where(inside, c0, 0)
        c1 = tl.where(inside & (x + 1 < shape[2])[None, :], c1, 0)
        c2 = tl.where(inside & (x + 2 < shape[2])[None, :], c2, 0)
        c3 = tl.where(inside & (x + 3 < shape[2])[None, :], c3, 0)
    return c0, c1, c2, c3


@triton.jit
def _in_order(fours):
    """Interleave a 4-tuple of [rows, fours] as one [rows, 4 * fours]."""
    shape: tl.constexpr = [fours[0].shape[0], 4 * fours[0].shape[1]]
    return tl.reshape(tl.join(tl.join(fours[0], fours[2]), tl.join(fours[1], fours[3])), shape)


@jit_kernel(do_not_specialize=["buffer", "status", "planes"])
def _faces_kernel(
    buffer, offsets, sizes, counts, first_tiles, index, status, fields, first_boxes, owners, sums,
    planes, TYPE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One program sums the residuals of one box along each axis on which another box follows it."""
    number = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + number)
    coded, _step, is_coded = _open_coded(
        buffer, offsets, sizes, counts, first_tiles, index, status, k, TYPE, BLOCK
    )
    place, shape, boxes = open_box(fields, first_boxes, k, number, planes, ROWS, COLUMNS)
    depth, height, width = shape
    y = place[2] * ROWS + tl.arange(0, ROWS)
    x = place[3] * COLUMNS + tl.arange(0, COLUMNS // 4) * 4
    is_whole = ((place[2] + 1) * ROWS <= height) & ((place[3] + 1) * COLUMNS <= width)
    is_deep, is_down = place[1] < boxes[0] - 1, place[2] < boxes[1] - 1
    is_across = place[3] < boxes[2] - 1
    begin = place[1] * planes
    is_needed = is_coded & (is_deep | is_down | is_across)
    t0 = tl.zeros([ROWS, COLUMNS // 4], dtype=tl.int32)
    t1, t2, t3 = t0, t0, t0
    for plane in range(begin, tl.where(is_needed, tl.minimum(begin + planes, depth), begin)):
        line = (place[0] * depth + plane) * height
        c0, c1, c2, c3 = _plane_codes(coded, line, shape, y, x, is_whole, SPLIT, BLOCK)
        t0, t1, t2, t3 = t0 + c0, t1 + c1, t2 + c2, t3 + c3
        if is_across:
            right = column_sums(sums, fields, k, place, shape, boxes, line + y)
            tl.store(right, tl.sum(c0 + c1 + c2 + c3, axis=1), mask=y < height)
        if is_down:
            below = row_sums(sums, fields, k, place, shape, boxes, plane, x)
            tl.store(below, tl.sum(c0, axis=0), mask=x < width)
            tl.store(below + 1, tl.sum(c1, axis=0), mask=x + 1 < width)
            tl.store(below + 2, tl.sum(c2, axis=0), mask=x + 2 < width)
            tl.store(below + 3, tl.sum(c3, axis=0), mask=x + 3 < width)
    if is_coded & is_deep:
        column = place[3] * COLUMNS + tl.arange(0, COLUMNS)
        inside = (y < height)[:, None] & (column < width)[None, :]
        behind = plane_sums(sums, fields, k, place, shape, boxes, y, column)
        tl.store(behind, _in_order((t0, t1, t2, t3)), mask=inside)


@triton.jit
def _load_above(above, x, width, is_below):
    """Return, for four columns, the sums of the rows above a box; 0 unless ``is_below`` another box."""
    a0 = tl.load(above, mask=is_below & (x < width), other=0)
    a1 = tl.load(above + 1, mask=is_below & (x + 1 < width), other=0)
    a2 = tl.load(above + 2, mask=is_below & (x + 2 < width), other=0)
    a3 = tl.load(above + 3, mask=is_below & (x + 3 < width), other=0)
    return a0, a1, a2, a3


@triton.jit
def _along_rows(totals, above, left):
    """Return the codes of rows from the sums of their columns and the sums left of them."""
    s0 = totals[0] + above[0][None, :]
    s1 = s0 + totals[1] + above[1][None, :]
    s2 = s1 + totals[2] + above[2][None, :]
    s3 = s2 + totals[3] + above[3][None, :]
    before = tl.cumsum(s3, axis=1) - s3 + left[:, None]
    return s0 + before, s1 + before, s2 + before, s3 + before


@jit_kernel(do_not_specialize=["buffer", "status", "planes"])
def _boxes_kernel(
    buffer, offsets, sizes, counts, first_tiles, index, status, fields, first_boxes, owners, sums,
    planes, targets, TYPE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, SPLIT: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program decodes one box; ``sums`` holds the sums of all that lies before it."""
    number = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + number)
    coded, step, is_coded = _open_coded(
        buffer, offsets, sizes, counts, first_tiles, index, status, k, TYPE, BLOCK
    )
    place, shape, boxes = open_box(fields, first_boxes, k, number, planes, ROWS, COLUMNS)
    depth, height, width = shape
    y = place[2] * ROWS + tl.arange(0, ROWS)
    x = place[3] * COLUMNS + tl.arange(0, COLUMNS // 4) * 4
    column = place[3] * COLUMNS + tl.arange(0, COLUMNS)
    is_whole = ((place[2] + 1) * ROWS <= height) & ((place[3] + 1) * COLUMNS <= width)
    is_behind = (y < height)[:, None] & (is_coded & (place[1] > 0))
    behind = plane_sums(sums, fields, k, place, shape, boxes, y, x) - height * width
    # sums over the planes before the box, and over its rows so far
    t0 = tl.cumsum(tl.load(behind, mask=is_behind & (x < width)[None, :], other=0), axis=0)
    t1 = tl.cumsum(tl.load(behind + 1, mask=is_behind & (x + 1 < width)[None, :], other=0), axis=0)
    t2 = tl.cumsum(tl.load(behind + 2, mask=is_behind & (x + 2 < width)[None, :], other=0), axis=0)
    t3 = tl.cumsum(tl.load(behind + 3, mask=is_behind & (x + 3 < width)[None, :], other=0), axis=0)
    address, count = tl.load(targets + k), coded[1].to(tl.int32)
    begin = place[1] * planes
    for plane in range(begin, tl.where(is_coded, tl.minimum(begin + planes, depth), begin)):
        line = (place[0] * depth + plane) * height
        c0, c1, c2, c3 = _plane_codes(coded, line, shape, y, x, is_whole, SPLIT, BLOCK)
        t0, t1 = t0 + tl.cumsum(c0, axis=0), t1 + tl.cumsum(c1, axis=0)
        t2, t3 = t2 + tl.cumsum(c2, axis=0), t3 + tl.cumsum(c3, axis=0)
        above = row_sums(sums, fields, k, place, shape, boxes, plane, x) - width
        above = _load_above(above, x, width, place[2] > 0)
        left = column_sums(sums, fields, k, place, shape, boxes, line + y) - 1
        left = tl.load(left, mask=(y < height) & (place[3] > 0), other=0)
        codes = _in_order(_along_rows((t0, t1, t2, t3), above, left))
        values = dequantize_values(codes, step, TYPE, False)
        position = ((line + y) * width).to(tl.int32)[:, None] + column.to(tl.int32)[None, :]
        if ALIGNED & is_whole & (width % 16 == 0):
            store_values(address, position, values, count, TYPE, True, True)
        else:
            # positions from the count on are not stored
            inside = (y < height)[:, None] & (column < width)[None, :]
            position = tl.where(inside, position, count)
            store_values(address, position, values, count, TYPE, False, False)


def axes_of(shape: tuple[int, ...], dims: int) -> tuple[int, int, int, int]:
    """Return batch, depth, height and width of a tensor; axes of one value do not predict and are left out."""
    numel = math.prod(shape)
    sizes = [size for size in predicting_shape(shape, dims)[-dims:] if size > 1]
    depth, height, width = (1, 1, 1, *sizes)[-3:]
    return numel // math.prod(sizes), depth, height, width


def num_axes(shape: tuple[int, int, int, int]) -> int:
    """Return 0 if nothing predicts, 1 if the flattened tensor does, else 2."""
    batch, depth, height, width = shape
    if width == 1:
        return 0
    return 1 if batch == depth == height == 1 else 2


def _decode_shaped(
    buffer: torch.Tensor, offsets: torch.Tensor, sizes: torch.Tensor,
    outs: Sequence[torch.Tensor], encoder: BitpackEncoder, status: torch.Tensor, table: BoxTable,
) -> None:  # fmt: skip
    """Implement ``decode_shaped`` for tensors that are not empty and have at least two predicting axes."""
    device, dtype, block = buffer.device, outs[0].dtype, encoder.block
    numels = tuple(y.numel() for y in outs)
    tiles, runs = (tile_table(numels, n * TILE_VALUES, device) for n in (1, UNPACK_RUN))
    targets = addresses(outs, device)
    memory = Layout.of(
        {
            "index": (torch.int16, tiles.num_tiles * (TILE_VALUES // block)),
            "sums": (torch.int32, table.num_sums),
        }
    ).carve(device)
    index, constants = memory["index"], {"TYPE": TYPES[dtype], "BLOCK": block}
    _index_kernel[(runs.num_tiles,)](
        buffer, offsets, sizes, targets, tiles.counts, tiles.first_tiles, runs.first_tiles,
        runs.owners, index, status, RUN=UNPACK_RUN, **constants, num_warps=1,
    )  # fmt: skip
    _add_up(
        table, memory["sums"], buffer, offsets, sizes, tiles.counts, tiles.first_tiles, index, outs,
        status, block,
    )  # fmt: skip
    put_outliers(buffer, offsets, sizes, targets, tiles.counts, dtype, status, max(numels))


def _add_up(
    table: BoxTable, sums: torch.Tensor, buffer: torch.Tensor, offsets: torch.Tensor,
    sizes: torch.Tensor, counts: torch.Tensor, first_tiles: torch.Tensor | None,
    index: torch.Tensor, outs: Sequence[torch.Tensor], status: torch.Tensor, block: int,
) -> None:  # fmt: skip
    """Sum residuals along all axes, and write the values."""
    planes, rows, columns = table.box
    where = (
        buffer, offsets, sizes, counts, first_tiles, index, status, table.fields,
        table.first_boxes, table.owners, sums, planes,
    )  # fmt: skip
    constants = {
        "TYPE": TYPES[outs[0].dtype],
        "BLOCK": block,
        "ROWS": rows,
        "COLUMNS": columns,
        "SPLIT": table.is_split,
        "num_warps": 1,
        "maxnreg": _MAX_REGISTERS,
    }
    if table.num_sums:
        _faces_kernel[(table.owners.numel(),)](*where, **constants)
        sum_faces(table, sums)
    _boxes_kernel[(table.owners.numel(),)](
        *where, addresses(outs, sums.device), ALIGNED=are_aligned(outs), **constants
    )


def restore_boxes(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    residuals: torch.Tensor,
    outs: Sequence[torch.Tensor],
    status: torch.Tensor,
    shapes: Sequence[tuple[int, int, int, int]],
) -> None:
    """Write the values of payloads whose residuals are decoded.

    Args:
        buffer: the payloads, as in ``decode_shaped``.
        offsets: starts of the payloads.
        sizes: sizes of the payloads.
        residuals: int64 [len(outs)], addresses of int32 residuals, which may be those of the tensors to write.
        outs: tensors to write, none empty; a tensor whose payload is not coded is not written.
        status: int32 [len(outs)], 0 if the residuals are good.
        shapes: ``axes_of`` each tensor.
    """
    device = buffer.device
    table = box_table(tuple(shapes), device)
    sums = torch.empty(table.num_sums, dtype=torch.int32, device=device)
    counts = on_device(tuple(out.numel() for out in outs), device)
    _add_up(table, sums, buffer, offsets, sizes, counts, None, residuals, outs, status, 0)


def decode_shaped(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    encoder: BitpackEncoder,
    status: torch.Tensor | None = None,
    dims: int = 2,
) -> torch.Tensor:
    """Decode as ``packed_decode.decode_packed`` does, with the last ``dims`` axes predicting, 2 or 3.

    Takes a workspace of half a byte per value, or one byte for lists of less than 2**24 values.
    """
    device = buffer.device
    if status is None:
        status = torch.zeros(len(outs), dtype=torch.int32, device=device)
    shapes = [axes_of(tuple(out.shape), dims) for out in outs]
    for axes in range(3):
        chosen = [k for k, shape in enumerate(shapes) if num_axes(shape) == axes]
        if not chosen:
            continue
        own, places = status, (offsets, sizes)
        if len(chosen) < len(outs):
            members = on_device(tuple(chosen), device)
            own, places = status[members], (offsets[members], sizes[members])
        some = [outs[k] for k in chosen]
        with torch.cuda.device_of(buffer):
            if axes < 2:
                decode_packed(buffer, *places, some, encoder, own, axes)
            else:
                table = box_table(tuple(shapes[k] for k in chosen), device)
                _decode_shaped(buffer, *places, some, encoder, own, table)
            if len(chosen) < len(outs):
                status.index_copy_(0, members, own)
    return status
