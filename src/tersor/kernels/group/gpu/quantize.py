"""Group quantization in Triton, alone and fused with the Hadamard transform, sums and a base.

A program takes one tile of ``tile``, for group sizes that are a power of two and that it can hold;
``generic`` takes the rest.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.group.gpu.generic import (
    PackedGroups,
    dequantize_any_group,
    hashes_of,
    quantize_any_group,
    seed_words,
)
from tersor.kernels.group.gpu.pack import read_sum
from tersor.kernels.group.gpu.tile import (
    dequantize_tile,
    num_rows_of,
    num_values_of,
    num_warps_of,
    quantize_rows,
    quantize_tile,
)
from tersor.kernels.group.layout import as_matrix, is_held_whole, outputs, row_strides
from tersor.kernels.group.reference import by_sender
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.transform.gpu import carrier, transform_into


@triton.jit
def _row_and_tile(num_tiles):
    """Return this program's row, and its tile within that row."""
    program = tl.program_id(0).to(tl.int64)
    return program // num_tiles, program % num_tiles


@jit_kernel(do_not_specialize=["num_groups", "num_tiles", "num_inner", "low", "high"])
def _quantize_kernel(
    x_ptr, x_outer, x_inner, base_ptr, base_outer, base_inner, num_values, scales_ptr, scales_outer,
    scales_inner, data_ptr, data_outer, data_inner, num_groups, num_tiles, num_inner, low, high,
    NBITS: tl.constexpr, STOCHASTIC: tl.constexpr, HADAMARD: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes the groups of ``ROWS`` lower rows, within a row of ``x``."""
    row, tile = _row_and_tile(num_tiles)
    outer, inner = row // num_inner, row % num_inner
    x_ptr += outer * x_outer + inner * x_inner
    if base_ptr is not None:
        base_ptr += outer * base_outer + inner * base_inner
    scales_ptr += outer * scales_outer + inner * scales_inner
    data_ptr += outer * data_outer + inner * data_inner
    # rounding continues from the position where the previous row ended
    low = hashes_of(row * num_groups * GROUP, low).to(tl.int32)
    target, seed = (scales_ptr, data_ptr, num_groups), (low, high)
    quantize_tile(
        x_ptr, base_ptr, num_values, target, tile, seed, NBITS, STOCHASTIC, HADAMARD, GROUP, ROWS
    )


@triton.jit
def _sender_rows(sent, data_row, scales_row, row):
    """Return the fields of ``PackedGroups`` for one row, given the strides of rows."""
    data, data_stride, scales, scales_stride, num_senders = sent
    data += row * data_row
    scales += row * scales_row
    return data, data_stride, scales, scales_stride, num_senders


@jit_kernel(do_not_specialize=["num_groups", "num_tiles"])
def _dequantize_kernel(
    sent, data_row, scales_row, num_groups, num_tiles, out_ptr, out_stride, num_values,
    NBITS: tl.constexpr, HADAMARD: tl.constexpr, ADD: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """One program decodes the groups of ``ROWS`` lower rows, within a row of ``out``."""
    row, tile = _row_and_tile(num_tiles)
    sent = _sender_rows(sent, data_row, scales_row, row)
    out_ptr += row * out_stride
    dequantize_tile(sent, num_groups, out_ptr, num_values, tile, NBITS, HADAMARD, ADD, GROUP, ROWS)


@jit_kernel(do_not_specialize=["num_groups", "num_tiles", "low", "high"])
def _sum_kernel(
    sent, data_row, scales_row, num_groups, num_tiles, scales_ptr, scales_stride, data_ptr,
    data_stride, low, high, NBITS: tl.constexpr, NEW_NBITS: tl.constexpr, STOCHASTIC: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program sums and quantizes the groups of ``ROWS`` lower rows."""
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    row, tile = _row_and_tile(num_tiles)
    sent = _sender_rows(sent, data_row, scales_row, row)
    scales_ptr += row * scales_stride
    data_ptr += row * data_stride
    low = hashes_of(row * num_groups * GROUP, low).to(tl.int32)
    target, seed = (scales_ptr, data_ptr, num_groups), (low, high)
    first = tile * (ROWS // PER_GROUP)
    num_rows = (num_groups - first) * PER_GROUP
    lower, upper, is_plain = read_sum(sent, first, num_rows, NBITS, GROUP, 1.0, False, True, ROWS)
    if is_plain:
        quantize_rows(lower, upper, target, first, seed, NEW_NBITS, GROUP, STOCHASTIC, True)
    else:
        lower, upper, _ = read_sum(sent, first, num_rows, NBITS, GROUP, 1.0, False, False, ROWS)
        quantize_rows(lower, upper, target, first, seed, NEW_NBITS, GROUP, STOCHASTIC, False)


_MAX_REGISTERS: Final = 128
"""Limit per thread of kernels that both transform or sum and round values: with 16 warps per multiprocessor
instead of 14, an H200 takes 323 instead of 348 us for 1 GiB (4 bits, Hadamard, stochastic)."""


def _tile_options(group: int) -> dict[str, int]:
    """Return the launch options of a kernel that takes tiles of whole groups."""
    return {"GROUP": group, "ROWS": num_rows_of(group), "num_warps": num_warps_of(group)}


def _num_tiles(num_groups: int, group: int) -> int:
    return ceil_div(num_groups * group, num_values_of(group))


def _is_aligned(data: torch.Tensor) -> bool:
    """True if the bytes of every row can be read as words."""
    offset = data.storage_offset() | data.data_ptr()
    return all(place % 4 == 0 for place in (offset, *data.stride()[:-1]))


def group_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    hadamard: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    base: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.group_quantize``."""
    num_groups = ceil_div(x.shape[-1], group)
    scales, data = outputs(tuple(x.shape[:-1]), num_groups, nbits, group, out, x.device)
    if scales.numel() == 0:
        return scales, data
    # a base of another size raises here
    base = base if base is None or base.shape == x.shape else base.view(x.shape)
    if is_held_whole(group) and _is_aligned(data):
        _quantize_whole(x, base, nbits, group, seed, hadamard, (scales, data))
        return scales, data
    targets = list(zip(_rows(scales), _rows(data), strict=True))
    bases = [None] * len(targets) if base is None else _rows(base)
    for k, (row, subtrahend) in enumerate(zip(_rows(x), bases, strict=True)):
        words = None if seed is None else seed_words(seed, k * num_groups * group)
        if hadamard:
            values = torch.empty(num_groups * group, dtype=torch.float32, device=x.device)
            transform_into(row, values, inverse=False, base=subtrahend)
            quantize_any_group(values, None, nbits, group, words, targets[k])
        else:
            quantize_any_group(row, subtrahend, nbits, group, words, targets[k])
    return scales, data


def _rows(x: torch.Tensor) -> list[torch.Tensor]:
    return [row for rows in as_matrix(x) for row in rows]


def _quantize_whole(
    x: torch.Tensor,
    base: torch.Tensor | None,
    nbits: int,
    group: int,
    seed: int | None,
    hadamard: bool,
    out: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Quantize groups that one program can hold."""
    scales, data = out[0], out[1].view(torch.int32)
    *lead, num_groups = scales.shape
    num_tiles = _num_tiles(num_groups, group)
    with torch.cuda.device_of(x):
        _quantize_kernel[(math.prod(lead) * num_tiles,)](
            *(carrier(x), *row_strides(x)),
            *((None, 0, 0) if base is None else (carrier(base), *row_strides(base))),
            *(x.shape[-1], scales, *row_strides(scales), data, *row_strides(data)),
            *(num_groups, num_tiles, lead[-1] if lead else 1, *seed_words(seed)),
            NBITS=nbits,
            STOCHASTIC=seed is not None,
            HADAMARD=hadamard,
            maxnreg=_MAX_REGISTERS if hadamard else None,
            **_tile_options(group),
        )


def group_dequantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool = False,
    out: torch.Tensor | None = None,
    add: bool = False,
) -> torch.Tensor:
    """See ``reference.group_dequantize``."""
    data, scales = by_sender(data, scales)
    num_senders, num_rows, num_groups = scales.shape
    data = data.view(num_senders, num_rows, num_groups * group * nbits // 8)
    if out is None:
        size = num_rows * num_groups * group
        out = torch.empty(size, dtype=torch.float32, device=data.device)
    if scales.numel() == 0:
        return out
    rows = out.view(num_rows, -1) if out.is_contiguous() else out
    if not (is_held_whole(group) and _is_aligned(data)):
        for k, row in enumerate(rows):
            _dequantize_any(data[:, k], scales[:, k], nbits, group, hadamard, row, add=add)
        return out
    words = data.view(torch.int32)
    num_tiles = _num_tiles(num_groups, group)
    with torch.cuda.device_of(data):
        _dequantize_kernel[(num_rows * num_tiles,)](
            *(PackedGroups.of(words, scales), row_strides(words)[1], row_strides(scales)[1]),
            *(num_groups, num_tiles, carrier(rows), row_strides(rows)[1], rows.shape[1]),
            NBITS=nbits,
            HADAMARD=hadamard,
            ADD=add,
            **_tile_options(group),
        )
    return out


def _dequantize_any(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool,
    out: torch.Tensor,
    *,
    add: bool,
) -> None:
    """Decode one row of groups of any size."""
    if not hadamard:
        dequantize_any_group(data, scales, nbits, group, out, add=add)
        return
    values = torch.empty(scales.shape[1] * group, dtype=torch.float32, device=data.device)
    dequantize_any_group(data, scales, nbits, group, values, add=False)
    transform_into(values, out, inverse=True, add=add)


def group_dequantize_sum_quantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out_nbits: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``compose.group_dequantize_sum_quantize``."""
    lead = tuple(data.shape[1:-1])
    data, scales = by_sender(data, scales)
    num_senders, num_rows, num_groups = scales.shape
    data = data.view(num_senders, num_rows, num_groups * group * nbits // 8)
    new_scales, new_data = outputs(lead, num_groups, out_nbits, group, out, data.device)
    if scales.numel() == 0:
        return new_scales, new_data
    if not (is_held_whole(group) and _is_aligned(data) and _is_aligned(new_data)):
        total = group_dequantize(data, scales, nbits, group).view(*lead, num_groups * group)
        return group_quantize(total, out_nbits, group, seed, out=(new_scales, new_data))
    words, targets = data.view(torch.int32), new_data.view(torch.int32)
    strides = row_strides(new_scales)[1], row_strides(targets)[1]
    num_tiles = _num_tiles(num_groups, group)
    with torch.cuda.device_of(data):
        _sum_kernel[(num_rows * num_tiles,)](
            *(PackedGroups.of(words, scales), row_strides(words)[1], row_strides(scales)[1]),
            *(num_groups, num_tiles, new_scales, strides[0], targets, strides[1]),
            *seed_words(seed),
            NBITS=nbits,
            NEW_NBITS=out_nbits,
            STOCHASTIC=seed is not None,
            maxnreg=_MAX_REGISTERS,
            **_tile_options(group),
        )
    return new_scales, new_data
