"""Group quantization in Triton, alone and fused with the Hadamard transform, sums and a base.

A program takes a tile of whole groups as the rows of ``group_rows``, and first takes it for plain;
what is not is read again. Groups must be a power of two that one program holds; ``any_group`` takes
the rest.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.any_group.gpu import (
    Sent,
    dequantize_any_group,
    hashes_of,
    quantize_any_group,
    scales_of,
    seed_words,
)
from tersor.kernels.group_rows.gpu import (
    INFINITE_BITS,
    read_rows,
    row_keys,
    row_peaks,
    write_rows,
)
from tersor.kernels.group_words.gpu import pack_rows, read_sum
from tersor.kernels.hadamard.gpu import carrier, transform_into

_MAX_GROUP: Final = 4096
"""The largest group that one program holds: with 64 rows of each half, two warps."""

_ROWS_PER_WARP: Final = 32
"""One lower and one upper row per thread: 64 values, as many as fit into registers."""

_MIN_ROWS: Final = 32
"""Rows of lower halves that a program takes, unless a group has more."""


@triton.jit
def _write_scales(keys, scales_ptr, num_groups, NBITS: tl.constexpr, GROUPS: tl.constexpr):
    """Store the scales of whole groups of rows; return the reciprocal for each row."""
    per_group: tl.constexpr = keys.shape[0] // GROUPS
    largest = tl.max(tl.reshape(keys, [GROUPS, per_group]), axis=1)
    scales, inverse = scales_of(largest, NBITS)
    groups = tl.arange(0, GROUPS)
    tl.store(scales_ptr + groups, scales, mask=groups < num_groups)
    return tl.reshape(tl.broadcast_to(inverse[:, None], [GROUPS, per_group]), [keys.shape[0]])


@triton.jit
def _quantize_rows(
    lower,
    upper,
    target,
    first,
    seed,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Quantize the groups from ``first`` on; ``PLAIN`` says that all are there and plain."""
    scales_ptr, data_ptr, num_groups = target
    low, high = seed
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    GROUPS: tl.constexpr = lower[0].shape[1] // PER_GROUP
    num_groups = tl.minimum(num_groups - first, GROUPS).to(tl.int32)
    keys = row_keys(lower, upper, PLAIN)
    inverse = _write_scales(keys, scales_ptr + first, num_groups, NBITS, GROUPS)
    hashes = hashes_of(first * GROUP, low)
    data_ptr += first * (GROUP * NBITS // 32)
    num_rows = num_groups * PER_GROUP
    pack_rows(
        lower, upper, inverse, hashes, high, data_ptr, num_rows, NBITS, GROUP, STOCHASTIC, PLAIN
    )


@triton.jit(do_not_specialize=["low", "high"])
def _quantize_kernel(
    x_ptr, base_ptr, num_values, scales_ptr, data_ptr, num_groups, low, high, NBITS: tl.constexpr,
    STOCHASTIC: tl.constexpr, HADAMARD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program quantizes the groups that ``ROWS`` lower rows belong to."""
    GROUPS: tl.constexpr = ROWS if GROUP == 32 else ROWS * 64 // GROUP
    target, seed = (scales_ptr, data_ptr, num_groups), (low, high)
    first = tl.program_id(0).to(tl.int64) * GROUPS
    x_ptr += first * GROUP
    if base_ptr is not None:
        base_ptr += first * GROUP
    num_values -= first * GROUP
    lower, upper = read_rows(x_ptr, base_ptr, num_values, GROUP, HADAMARD, True, ROWS)
    is_finite = tl.max(row_peaks(lower, upper), axis=0) < INFINITE_BITS
    if is_finite & (num_values >= GROUPS * GROUP):
        _quantize_rows(lower, upper, target, first, seed, NBITS, GROUP, STOCHASTIC, True)
    else:
        lower, upper = read_rows(x_ptr, base_ptr, num_values, GROUP, HADAMARD, False, ROWS)
        _quantize_rows(lower, upper, target, first, seed, NBITS, GROUP, STOCHASTIC, False)


@triton.jit
def _dequantize_kernel(
    sent, num_groups, out_ptr, num_values, NBITS: tl.constexpr, HADAMARD: tl.constexpr,
    ADD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program decodes the groups that ``ROWS`` lower rows belong to."""
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    GROUPS: tl.constexpr = ROWS // PER_GROUP
    FACTOR: tl.constexpr = 0.03125 if HADAMARD else 1.0
    first = tl.program_id(0).to(tl.int64) * GROUPS
    num_rows = (num_groups - first) * PER_GROUP
    out_ptr += first * GROUP
    num_values -= first * GROUP
    lower, upper, is_plain = read_sum(
        sent, first, num_rows, NBITS, GROUP, FACTOR, HADAMARD, True, ROWS
    )
    if is_plain & (num_values >= GROUPS * GROUP):
        write_rows(lower, upper, out_ptr, num_values, GROUP, HADAMARD, ADD, True)
    else:
        lower, upper, _ = read_sum(sent, first, num_rows, NBITS, GROUP, 1.0, HADAMARD, False, ROWS)
        write_rows(lower, upper, out_ptr, num_values, GROUP, HADAMARD, ADD, False)


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
        _quantize_rows(lower, upper, target, first, seed, NEW_NBITS, GROUP, STOCHASTIC, True)
    else:
        lower, upper, _ = read_sum(sent, first, num_rows, NBITS, GROUP, 1.0, False, False, ROWS)
        _quantize_rows(lower, upper, target, first, seed, NEW_NBITS, GROUP, STOCHASTIC, False)


def _launch(kernel: Any, num_groups: int, group: int, *arguments: Any, **constants: Any) -> None:
    """Run a kernel with one program for each tile of whole groups."""
    rows = max(_MIN_ROWS, group // 64)
    num_programs = triton.cdiv(num_groups, rows if group == 32 else rows * 64 // group)
    constants |= {"GROUP": group, "ROWS": rows, "num_warps": rows // _ROWS_PER_WARP}
    kernel[(num_programs,)](*arguments, **constants, enable_fp_fusion=False)


def _is_aligned(data: torch.Tensor) -> bool:
    """Say whether bytes, flat or in rows, can be read as words."""
    return (
        data.storage_offset() | data.data_ptr() | (data.stride(0) if data.dim() == 2 else 0)
    ) % 4 == 0


def _is_one_pass(group: int) -> bool:
    """Say whether one program holds whole groups."""
    return 32 <= group <= _MAX_GROUP and group & (group - 1) == 0


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
    base: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``fused.group_transform_quantize``."""
    num_groups = triton.cdiv(x.numel(), group)
    scales, data = _outputs(num_groups, nbits, group, out, x.device)
    if num_groups == 0:
        return scales, data
    # another size raises here
    base = None if base is None else base.view(x.shape)
    if not (_is_one_pass(group) and _is_aligned(data)):
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
    add: bool = False,
) -> None:
    """See ``fused.group_dequantize_transform``."""
    scales = torch.atleast_2d(scales)
    num_groups = scales.shape[1]
    data = torch.atleast_2d(data).view(len(scales), num_groups * group * nbits // 8)
    if num_groups == 0:
        return
    if not (_is_one_pass(group) and _is_aligned(data)):
        if not hadamard:
            dequantize_any_group(data, scales, nbits, group, out, add=add)
            return
        values = torch.empty(num_groups * group, dtype=torch.float32, device=data.device)
        dequantize_any_group(data, scales, nbits, group, values, add=False)
        transform_into(values, out, inverse=True, add=add)
        return
    sent = Sent.of(data.view(torch.int32), scales)
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
    sent = Sent.of(data.view(torch.int32), scales)
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
