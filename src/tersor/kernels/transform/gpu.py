"""Hadamard transform in Triton; the device functions are shared with the fused group kernels.

A tile is read as rows of 32 values and split into four tensors of [8, rows]: values 0, 1, 2 and 3 of
every four. Because rows are the last axis, the compiler gives each thread whole rows for the levels of
stride 4, 8 and 16; strides 1 and 2 lie inside one wide load. No level therefore exchanges values
between threads: values pass through shared memory once, and memory access stays coalesced.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.transform.reference import ORDER

_ROWS: Final = 64


@triton.jit
def widened(raw, x_ptr):
    """Convert ``raw``, loaded from ``x_ptr``, to float32; int16 holds the bits of bfloat16."""
    if x_ptr.dtype.element_ty == tl.int16:
        values = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        values = raw.to(tl.float32)
    return values


@triton.jit
def narrowed(values, out_ptr, PLAIN: tl.constexpr):
    """Round float32 values to the dtype of ``out_ptr``; ``PLAIN`` promises that none is NaN.

    float32 is left unchanged. In other dtypes a NaN has only the quiet bit set, as in torch's casts.
    """
    result = values
    if out_ptr.dtype.element_ty == tl.int16:
        bits = values.to(tl.uint32, bitcast=True)
        result = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        if not PLAIN:
            result = tl.where(tl.abs(values) <= float("inf"), result, 0x7FC0)
        result = result.to(tl.int16)
    elif out_ptr.dtype.element_ty != tl.float32:
        result = values.to(out_ptr.dtype.element_ty)
        if not PLAIN:
            is_number = tl.abs(values) <= float("inf")
            result = tl.where(is_number, result, float("nan")).to(out_ptr.dtype.element_ty)
    return result


@triton.jit
def load_values(x_ptr, base_ptr, offsets, mask, other):
    """Load values as float32, with ``other`` where ``mask`` is false; both may be None.

    If ``base_ptr`` is not None, its values are subtracted, and the difference is first rounded to the
    dtype of ``x_ptr``, as in torch.
    """
    values = tl.load(x_ptr + offsets, mask=mask, other=other)
    if base_ptr is None:
        values = widened(values, x_ptr)
    else:
        base = tl.load(base_ptr + offsets, mask=mask, other=other)
        if x_ptr.dtype.element_ty == tl.float64:
            values = (values - base).to(tl.float32)
        else:
            values = widened(values, x_ptr) - widened(base, x_ptr)
            # the device's conversion maps NaN to some NaN; its payload does not matter here
            by_device: tl.constexpr = x_ptr.dtype.element_ty != tl.int16
            values = widened(narrowed(values, x_ptr, by_device), x_ptr)
    return values


@triton.jit
def store_values(out_ptr, values, mask, PLAIN: tl.constexpr, ADD: tl.constexpr):
    """Store float32 values; see ``narrowed`` for ``PLAIN``.

    With ``ADD`` they are added to the values in memory, in float32 (float64 for float64), and the sum
    is rounded once.
    """
    if ADD:
        base = tl.load(out_ptr, mask=mask)
        if out_ptr.dtype.element_ty == tl.float64:
            stored = base + values.to(tl.float64)
            stored = tl.where(tl.abs(stored) <= float("inf"), stored, float("nan"))
        else:
            total = widened(base, out_ptr) + values
            # the bits of a NaN that an addition makes differ between devices
            total = tl.where(tl.abs(total) <= float("inf"), total, float("nan"))
            stored = narrowed(total, out_ptr, False)
    else:
        stored = narrowed(values, out_ptr, PLAIN)
    tl.store(out_ptr, stored, mask=mask)


@triton.jit
def split_rows(rows):
    """Return values 0, 1, 2 and 3 of every four in [ROWS, 32], each as [8, ROWS]."""
    quads = tl.permute(tl.reshape(rows, [rows.shape[0], 8, 2, 2]), [1, 0, 2, 3])
    even, odd = tl.split(quads)
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def join_rows(quads):
    """Invert ``split_rows``."""
    v0, v1, v2, v3 = quads
    joined = tl.join(tl.join(v0, v2), tl.join(v1, v3))
    return tl.reshape(tl.permute(joined, [1, 0, 2, 3]), [v0.shape[1], 32])


@triton.jit
def _level(quads, STRIDE: tl.constexpr):
    """Apply the butterfly level between quads ``STRIDE`` apart in [8, ROWS]."""
    pairs = tl.reshape(quads, [4 // STRIDE, 2, STRIDE, quads.shape[1]])
    first, second = tl.split(tl.permute(pairs, [0, 2, 3, 1]))
    joined = tl.join(first + second, first - second)
    return tl.reshape(tl.permute(joined, [0, 3, 1, 2]), [8, quads.shape[1]])


@triton.jit
def _levels(quads):
    return _level(_level(_level(quads, 1), 2), 4)


@triton.jit
def transform(quads):
    """Transform rows that ``split_rows`` split: strides 1 and 2, then 4, 8 and 16."""
    v0, v1, v2, v3 = quads
    w0, w1, w2, w3 = v0 + v1, v0 - v1, v2 + v3, v2 - v3
    v0, v1, v2, v3 = w0 + w2, w1 + w3, w0 - w2, w1 - w3
    return _levels(v0), _levels(v1), _levels(v2), _levels(v3)


@triton.jit
def _transform_rows(
    x_ptr,
    base_ptr,
    out_ptr,
    offsets,
    read,
    written,
    FACTOR: tl.constexpr,
    ADD: tl.constexpr,
):
    """Transform [ROWS, 32] values; ``read`` and ``written`` are masks, or None for all."""
    rows = load_values(x_ptr, base_ptr, offsets, read, None if read is None else 0)
    rows = join_rows(transform(split_rows(rows))) * FACTOR
    store_values(out_ptr + offsets, rows, written, False, ADD)


@jit_kernel()
def _hadamard_kernel(
    x_ptr,
    base_ptr,
    num_read,
    out_ptr,
    num_written,
    FACTOR: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program transforms ``ROWS`` rows of 32 values."""
    first = tl.program_id(0).to(tl.int64) * (ROWS * 32)
    offsets = first + (tl.arange(0, ROWS)[:, None] * 32 + tl.arange(0, 32)[None, :])
    # only the last tile is masked, because a mask prevents wide loads and stores
    if first + ROWS * 32 <= tl.minimum(num_read, num_written):
        _transform_rows(x_ptr, base_ptr, out_ptr, offsets, None, None, FACTOR, ADD)
    else:
        read, written = offsets < num_read, offsets < num_written
        _transform_rows(x_ptr, base_ptr, out_ptr, offsets, read, written, FACTOR, ADD)


def carrier(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as kernels take it: bfloat16 on the CPU, where they are interpreted, becomes int16.

    Triton's interpreter truncates to bfloat16 instead of rounding.
    """
    on_cpu = x.device.type == "cpu"
    return x.view(torch.int16) if on_cpu and x.dtype == torch.bfloat16 else x


def transform_into(
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    inverse: bool,
    base: torch.Tensor | None = None,
    add: bool = False,
) -> None:
    """Transform the contiguous ``x``, minus ``base``, into the contiguous ``out``.

    Both may have any float dtype. ``x`` is padded with zeros to whole rows, and results beyond the
    end of ``out`` are not stored.

    Args:
        x: values to transform.
        out: receives the result.
        inverse: undo the transform.
        base: subtracted from ``x``; has its dtype and size.
        add: add the result to the contents of ``out``.
    """
    num_tiles = ceil_div(out.numel(), ORDER * _ROWS)
    if num_tiles == 0:
        return
    with torch.cuda.device_of(x):
        _hadamard_kernel[(num_tiles,)](
            carrier(x),
            None if base is None else carrier(base),
            x.numel(),
            carrier(out),
            out.numel(),
            FACTOR=ORDER**-1 if inverse else 1.0,
            ADD=add,
            ROWS=_ROWS,
            num_warps=_ROWS // 32,
        )


def hadamard(x: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """See ``reference.hadamard``."""
    out = torch.empty_like(x)
    transform_into(x, out, inverse=inverse)
    return out
