"""Group quantization in Triton, alone and fused with the Hadamard transform and with sums.

The kernels work on the rows of ``group_words``. Groups must be 32 or a multiple of 64, and to be
quantized a power of two that one program holds; ``any_group`` takes the rest.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.any_group.gpu import (
    dequantize_any_group,
    magnitudes,
    quantize_any_group,
    scales_of,
    seed_words,
)
from tersor.kernels.group_words.gpu import read_sum, row_starts, to_words, write_group_words
from tersor.kernels.hadamard.gpu import (
    carrier,
    join_rows,
    load_rows,
    split_rows,
    store_rows,
    transform,
    transform_into,
)

_MAX_GROUP: Final = 4096
"""The largest group that one program holds: with 64 rows of each half, two warps."""

_ROWS_PER_WARP: Final = 32
"""One lower and one upper row per thread: 64 values, as many as fit into registers."""


@triton.jit
def _read_rows(x_ptr, starts, num_values, whole, HADAMARD: tl.constexpr, ROWS: tl.constexpr):
    """Return rows of values, transformed if asked, as four tensors of [8, ROWS]."""
    offsets = starts[:, None] + tl.arange(0, 32)[None, :]
    v0, v1, v2, v3 = split_rows(load_rows(x_ptr, offsets, num_values, whole), ROWS)
    if HADAMARD:
        v0, v1, v2, v3 = transform(v0, v1, v2, v3, ROWS)
    return v0, v1, v2, v3


@triton.jit
def _row_keys(v0, v1, v2, v3):
    """Return the largest magnitude key of each row."""
    pair = tl.maximum(magnitudes(v0), magnitudes(v1))
    other = tl.maximum(magnitudes(v2), magnitudes(v3))
    return tl.max(tl.maximum(pair, other), axis=0)


@triton.jit
def _write_scales(
    keys,
    scales_ptr,
    first,
    num_groups,
    NBITS: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Store the scales of whole groups of rows; return the reciprocal for each row."""
    per_group: tl.constexpr = ROWS // GROUPS
    largest = tl.max(tl.reshape(keys, [GROUPS, per_group]), axis=1)
    scales, inverse = scales_of(largest, NBITS)
    groups = first + tl.arange(0, GROUPS)
    tl.store(scales_ptr + groups, scales, mask=groups < num_groups)
    return tl.reshape(tl.broadcast_to(inverse[:, None], [GROUPS, per_group]), [ROWS])


@triton.jit
def _quantize_rows(
    a0,
    a1,
    a2,
    a3,
    b0,
    b1,
    b2,
    b3,
    scales_ptr,
    data_ptr,
    num_groups,
    first,
    low,
    high,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Quantize whole groups from ``first`` on: rows of lower halves, and their upper ones."""
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    GROUPS: tl.constexpr = ROWS // PER_GROUP
    keys = tl.maximum(_row_keys(a0, a1, a2, a3), _row_keys(b0, b1, b2, b3))
    inverse = _write_scales(keys, scales_ptr, first, num_groups, NBITS, GROUPS, ROWS)
    starts = first * GROUP + row_starts(tl.arange(0, ROWS), GROUP)
    lower = to_words(a0, a1, a2, a3, starts, inverse, low, high, NBITS, STOCHASTIC)
    starts += GROUP // 2
    upper = to_words(b0, b1, b2, b3, starts, inverse, low, high, NBITS, STOCHASTIC)
    rows = first * PER_GROUP + tl.arange(0, ROWS)
    whole = first + GROUPS <= num_groups
    num_rows = num_groups * PER_GROUP
    write_group_words(lower, upper, data_ptr, rows, num_rows, whole, NBITS, GROUP)


@triton.jit(do_not_specialize=["low", "high"])
def _quantize_kernel(
    x_ptr,
    num_values,
    scales_ptr,
    data_ptr,
    num_groups,
    low,
    high,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    HADAMARD: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program quantizes the groups that ``ROWS`` rows of lower halves belong to."""
    GROUPS: tl.constexpr = ROWS if GROUP == 32 else ROWS * 64 // GROUP
    first = tl.program_id(0).to(tl.int64) * GROUPS
    starts = first * GROUP + row_starts(tl.arange(0, ROWS), GROUP)
    whole = (first + GROUPS) * GROUP <= num_values
    a0, a1, a2, a3 = _read_rows(x_ptr, starts, num_values, whole, HADAMARD, ROWS)
    b0, b1, b2, b3 = a0, a1, a2, a3
    if GROUP != 32:
        starts += GROUP // 2
        b0, b1, b2, b3 = _read_rows(x_ptr, starts, num_values, whole, HADAMARD, ROWS)
    _quantize_rows(
        a0,
        a1,
        a2,
        a3,
        b0,
        b1,
        b2,
        b3,
        scales_ptr,
        data_ptr,
        num_groups,
        first,
        low,
        high,
        NBITS,
        GROUP,
        STOCHASTIC,
        ROWS,
    )


@triton.jit
def _write_rows(
    v0, v1, v2, v3, out_ptr, starts, num_values, whole, HADAMARD: tl.constexpr, ROWS: tl.constexpr
):
    """Store rows, after the inverse transform if asked."""
    if HADAMARD:
        v0, v1, v2, v3 = transform(v0, v1, v2, v3, ROWS)
    values = join_rows(v0, v1, v2, v3, ROWS)
    if HADAMARD:
        values *= 0.03125
        # the NaN of an addition differs between devices
        values = tl.where(tl.abs(values) <= float("inf"), values, float("nan"))
    offsets = starts[:, None] + tl.arange(0, 32)[None, :]
    store_rows(out_ptr, offsets, values, num_values, whole)


@triton.jit
def _dequantize_kernel(
    data_ptr,
    data_stride,
    scales_ptr,
    scales_stride,
    num_senders,
    num_rows,
    out_ptr,
    num_values,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    HADAMARD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program decodes ``ROWS`` rows of lower halves and their upper ones."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    starts = row_starts(rows, GROUP)
    a0, a1, a2, a3, b0, b1, b2, b3 = read_sum(
        data_ptr,
        data_stride,
        scales_ptr,
        scales_stride,
        num_senders,
        rows,
        starts,
        rows < num_rows,
        NBITS,
        GROUP,
        HADAMARD,
        ROWS,
    )
    last = row_starts(tl.program_id(0).to(tl.int64) * ROWS + (ROWS - 1), GROUP) + 32
    if GROUP == 32:
        _write_rows(a0, a1, a2, a3, out_ptr, starts, num_values, last <= num_values, HADAMARD, ROWS)
    else:
        upper = starts + GROUP // 2
        whole = last + GROUP // 2 <= num_values
        _write_rows(a0, a1, a2, a3, out_ptr, starts, num_values, whole, HADAMARD, ROWS)
        _write_rows(b0, b1, b2, b3, out_ptr, upper, num_values, whole, HADAMARD, ROWS)


@triton.jit(do_not_specialize=["low", "high"])
def _sum_kernel(
    data_ptr,
    data_stride,
    scales_ptr,
    scales_stride,
    num_senders,
    num_groups,
    new_scales_ptr,
    new_data_ptr,
    low,
    high,
    NBITS: tl.constexpr,
    NEW_NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program sums and quantizes the groups that ``ROWS`` rows of lower halves belong to."""
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    first = tl.program_id(0).to(tl.int64) * (ROWS // PER_GROUP)
    rows = first * PER_GROUP + tl.arange(0, ROWS)
    a0, a1, a2, a3, b0, b1, b2, b3 = read_sum(
        data_ptr,
        data_stride,
        scales_ptr,
        scales_stride,
        num_senders,
        rows,
        row_starts(rows, GROUP),
        rows < num_groups * PER_GROUP,
        NBITS,
        GROUP,
        False,
        ROWS,
    )
    _quantize_rows(
        a0,
        a1,
        a2,
        a3,
        b0,
        b1,
        b2,
        b3,
        new_scales_ptr,
        new_data_ptr,
        num_groups,
        first,
        low,
        high,
        NEW_NBITS,
        GROUP,
        STOCHASTIC,
        ROWS,
    )


def _is_aligned(data: torch.Tensor) -> bool:
    """Say whether bytes, flat or in rows, can be read as words."""
    return (
        data.storage_offset() | data.data_ptr() | (data.stride(0) if data.dim() == 2 else 0)
    ) % 4 == 0


def _is_one_pass(group: int) -> bool:
    """Say whether one program holds whole groups."""
    return 32 <= group <= _MAX_GROUP and group & (group - 1) == 0


def _tile(group: int) -> tuple[int, int]:
    """Return rows of lower halves per program and its warps, so that it holds whole groups."""
    rows = max(_ROWS_PER_WARP, group // 64)
    return rows, rows // _ROWS_PER_WARP


def _outputs(
    num_groups: int,
    nbits: int,
    group: int,
    out: tuple[torch.Tensor, torch.Tensor] | None,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``out``, whose sizes torch checks, or new scales and data."""
    if out is not None:
        return out[0].view(num_groups), out[1].view(num_groups * group * nbits // 8)
    scales = torch.empty(num_groups, dtype=torch.float32, device=device)
    data = torch.empty(num_groups * group * nbits // 8, dtype=torch.uint8, device=device)
    return scales, data


def group_transform_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    hadamard: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``fused.group_transform_quantize``."""
    num_groups = triton.cdiv(x.numel(), group)
    scales, data = _outputs(num_groups, nbits, group, out, x.device)
    if num_groups == 0:
        return scales, data
    if not (_is_one_pass(group) and _is_aligned(data)):
        if hadamard:
            transformed = torch.empty(num_groups * group, dtype=torch.float32, device=x.device)
            transform_into(x, transformed, inverse=False)
            x = transformed
        quantize_any_group(x, nbits, group, seed, (scales, data))
        return scales, data
    rows, num_warps = _tile(group)
    groups = rows if group == 32 else rows * 64 // group
    launch: Any = _quantize_kernel[(triton.cdiv(num_groups, groups),)]
    with torch.cuda.device_of(x):
        launch(
            carrier(x),
            x.numel(),
            scales,
            data.view(torch.int32),
            num_groups,
            *seed_words(seed),
            NBITS=nbits,
            GROUP=group,
            HADAMARD=hadamard,
            STOCHASTIC=seed is not None,
            ROWS=rows,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )
    return scales, data


def group_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.group_quantize``."""
    return group_transform_quantize(x, nbits, group, seed, out=out)


def group_dequantize_transform(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool,
    out: torch.Tensor,
) -> None:
    """See ``fused.group_dequantize_transform``."""
    scales = torch.atleast_2d(scales)
    num_groups = scales.shape[1]
    data = torch.atleast_2d(data).view(len(scales), num_groups * group * nbits // 8)
    if num_groups == 0:
        return
    if not (_is_aligned(data) and (group == 32 or group % 64 == 0)):
        target = out
        if hadamard:
            target = torch.empty(num_groups * group, dtype=torch.float32, device=data.device)
        dequantize_any_group(data, scales, nbits, group, target)
        if hadamard:
            transform_into(target, out, inverse=True)
        return
    words = data.view(torch.int32)
    num_rows = num_groups if group == 32 else num_groups * group // 64
    launch: Any = _dequantize_kernel[(triton.cdiv(num_rows, _ROWS_PER_WARP),)]
    with torch.cuda.device_of(data):
        launch(
            words,
            words.stride(0),
            scales,
            scales.stride(0),
            len(scales),
            num_rows,
            carrier(out),
            out.numel(),
            NBITS=nbits,
            GROUP=group,
            HADAMARD=hadamard,
            ROWS=_ROWS_PER_WARP,
            num_warps=1,
            enable_fp_fusion=False,
        )


def group_dequantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``reference.group_dequantize``."""
    if out is None:
        out = torch.empty(scales.numel() * group, dtype=torch.float32, device=data.device)
    group_dequantize_transform(data, scales, nbits, group, False, out)
    return out


def group_dequantize_sum_quantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out_nbits: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``fused.group_dequantize_sum_quantize``."""
    num_groups = scales.shape[1]
    data = data.view(len(scales), num_groups * group * nbits // 8)
    new_scales, new_data = _outputs(num_groups, out_nbits, group, out, data.device)
    if not (_is_one_pass(group) and _is_aligned(data) and _is_aligned(new_data)):
        total = torch.empty(num_groups * group, dtype=torch.float32, device=data.device)
        group_dequantize_transform(data, scales, nbits, group, False, total)
        return group_quantize(total, out_nbits, group, seed, (new_scales, new_data))
    if num_groups == 0:
        return new_scales, new_data
    words = data.view(torch.int32)
    rows, num_warps = _tile(group)
    groups = rows if group == 32 else rows * 64 // group
    launch: Any = _sum_kernel[(triton.cdiv(num_groups, groups),)]
    with torch.cuda.device_of(data):
        launch(
            words,
            words.stride(0),
            scales,
            scales.stride(0),
            len(scales),
            num_groups,
            new_scales,
            new_data.view(torch.int32),
            *seed_words(seed),
            NBITS=nbits,
            NEW_NBITS=out_nbits,
            GROUP=group,
            STOCHASTIC=seed is not None,
            ROWS=rows,
            num_warps=num_warps,
            enable_fp_fusion=False,
        )
    return new_scales, new_data
