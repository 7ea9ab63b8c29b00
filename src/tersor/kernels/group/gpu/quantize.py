"""Group quantization in Triton, alone and fused with the Hadamard transform, sums and a base.

A program takes one of the tiles of ``group_tile``, whose groups are a power of two that it holds;
``generic`` takes the rest.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.group.gpu.generic import (
    PackedGroups,
    dequantize_any_group,
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
from tersor.kernels.group.layout import is_held_whole, outputs
from tersor.kernels.transform.gpu import carrier, transform_into


@triton.jit(do_not_specialize=["low", "high"])
def _quantize_kernel(
    x_ptr, base_ptr, num_values, scales_ptr, data_ptr, num_groups, low, high, NBITS: tl.constexpr,
    STOCHASTIC: tl.constexpr, HADAMARD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes the groups that ``ROWS`` lower rows belong to."""
    target, seed = (scales_ptr, data_ptr, num_groups), (low, high)
    tile = tl.program_id(0).to(tl.int64)
    quantize_tile(
        x_ptr, base_ptr, num_values, target, tile, seed, NBITS, STOCHASTIC, HADAMARD, GROUP, ROWS
    )


@triton.jit
def _dequantize_kernel(
    sent, num_groups, out_ptr, num_values, NBITS: tl.constexpr, HADAMARD: tl.constexpr,
    ADD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program decodes the groups that ``ROWS`` lower rows belong to."""
    tile = tl.program_id(0).to(tl.int64)
    dequantize_tile(sent, num_groups, out_ptr, num_values, tile, NBITS, HADAMARD, ADD, GROUP, ROWS)


@triton.jit(do_not_specialize=["low", "high"])
def _sum_kernel(
    sent, num_groups, scales_ptr, data_ptr, low, high, NBITS: tl.constexpr,
    NEW_NBITS: tl.constexpr, STOCHASTIC: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program sums and quantizes the groups that ``ROWS`` lower rows belong to."""
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    target, seed = (scales_ptr, data_ptr, num_groups), (low, high)
    first = tl.program_id(0).to(tl.int64) * (ROWS // PER_GROUP)
    num_rows = (num_groups - first) * PER_GROUP
    lower, upper, is_plain = read_sum(sent, first, num_rows, NBITS, GROUP, 1.0, False, True, ROWS)
    if is_plain:
        quantize_rows(lower, upper, target, first, seed, NEW_NBITS, GROUP, STOCHASTIC, True)
    else:
        lower, upper, _ = read_sum(sent, first, num_rows, NBITS, GROUP, 1.0, False, False, ROWS)
        quantize_rows(lower, upper, target, first, seed, NEW_NBITS, GROUP, STOCHASTIC, False)


def _launch(kernel: Any, num_groups: int, group: int, *arguments: Any, **constants: Any) -> None:
    """Run a kernel with one program for each tile of whole groups."""
    rows = num_rows_of(group)
    num_programs = ceil_div(num_groups * group, num_values_of(group))
    constants |= {"GROUP": group, "ROWS": rows, "num_warps": num_warps_of(group)}
    kernel[(num_programs,)](*arguments, **constants, enable_fp_fusion=False)


def _is_aligned(data: torch.Tensor) -> bool:
    """True if bytes, flat or in rows, can be read as words."""
    return (
        data.storage_offset() | data.data_ptr() | (data.stride(0) if data.dim() == 2 else 0)
    ) % 4 == 0


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
    num_groups = ceil_div(x.numel(), group)
    scales, data = outputs(num_groups, nbits, group, out, x.device)
    if num_groups == 0:
        return scales, data
    # another size raises here
    base = None if base is None else base.view(x.shape)
    if not (is_held_whole(group) and _is_aligned(data)):
        if hadamard:
            transformed = torch.empty(num_groups * group, dtype=torch.float32, device=x.device)
            transform_into(x, transformed, inverse=False, base=base)
            x, base = transformed, None
        quantize_any_group(x, base, nbits, group, seed, (scales, data))
        return scales, data
    subtrahend = None if base is None else carrier(base)
    target = (scales, data.view(torch.int32), num_groups)
    with torch.cuda.device_of(x):
        _launch(
            _quantize_kernel,
            num_groups,
            group,
            *(carrier(x), subtrahend, x.numel(), *target, *seed_words(seed)),
            NBITS=nbits,
            STOCHASTIC=seed is not None,
            HADAMARD=hadamard,
        )
    return scales, data


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
    scales = torch.atleast_2d(scales)
    num_groups = scales.shape[1]
    data = torch.atleast_2d(data).view(len(scales), num_groups * group * nbits // 8)
    if out is None:
        out = torch.empty(num_groups * group, dtype=torch.float32, device=data.device)
    if num_groups == 0:
        return out
    if not (is_held_whole(group) and _is_aligned(data)):
        if not hadamard:
            dequantize_any_group(data, scales, nbits, group, out, add=add)
            return out
        values = torch.empty(num_groups * group, dtype=torch.float32, device=data.device)
        dequantize_any_group(data, scales, nbits, group, values, add=False)
        transform_into(values, out, inverse=True, add=add)
        return out
    sent = PackedGroups.of(data.view(torch.int32), scales)
    with torch.cuda.device_of(data):
        _launch(
            _dequantize_kernel,
            num_groups,
            group,
            *(sent, num_groups, carrier(out), out.numel()),
            NBITS=nbits,
            HADAMARD=hadamard,
            ADD=add,
        )
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
    """See ``compose.group_dequantize_sum_quantize``."""
    num_groups = scales.shape[1]
    data = data.view(len(scales), num_groups * group * nbits // 8)
    new_scales, new_data = outputs(num_groups, out_nbits, group, out, data.device)
    if not (is_held_whole(group) and _is_aligned(data) and _is_aligned(new_data)):
        total = group_dequantize(data, scales, nbits, group)
        return group_quantize(total, out_nbits, group, seed, out=(new_scales, new_data))
    if num_groups == 0:
        return new_scales, new_data
    sent = PackedGroups.of(data.view(torch.int32), scales)
    target = (num_groups, new_scales, new_data.view(torch.int32))
    with torch.cuda.device_of(data):
        _launch(
            _sum_kernel,
            num_groups,
            group,
            *(sent, *target, *seed_words(seed)),
            NBITS=nbits,
            NEW_NBITS=out_nbits,
            STOCHASTIC=seed is not None,
        )
    return new_scales, new_data
