"""Hadamard transform in Triton; the device functions are shared with the fused group kernels.

A tile is read as rows of 32 values and taken apart into four tensors of [8, rows]: value 0, 1, 2
and 3 of every four. The last axis being the rows, the compiler gives each thread whole rows for the
levels of stride 4, 8 and 16; strides 1 and 2 lie inside one wide load. So no level exchanges values
between threads: they pass through shared memory once, and memory access stays coalesced.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.hadamard.reference import ORDER

_ROWS: Final = 64


@triton.jit
def widened(raw, x_ptr):
    """Return what was read from ``x_ptr`` as float32; int16 holds the bits of bfloat16."""
    if x_ptr.dtype.element_ty == tl.int16:
        values = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        values = raw.to(tl.float32)
    return values


@triton.jit
def narrowed(values, out_ptr):
    """Round float32 values to what ``out_ptr`` holds; see ``widened``.

    float32 stays as it is. In other dtypes a NaN has the quiet bit alone, as torch's cast makes it.
    """
    result = values
    is_number = tl.abs(values) <= float("inf")
    if out_ptr.dtype.element_ty == tl.int16:
        bits = values.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        result = tl.where(is_number, rounded, 0x7FC0).to(tl.int16)
    elif out_ptr.dtype.element_ty != tl.float32:
        rounded = values.to(out_ptr.dtype.element_ty)
        result = tl.where(is_number, rounded, float("nan")).to(out_ptr.dtype.element_ty)
    return result


@triton.jit
def load_rows(x_ptr, offsets, num_values, whole):
    """Return the values at ``offsets``, and 0 where these are not below ``num_values``.

    ``whole`` says that all are. Only the last tile pays for a mask, which keeps loads from being
    wide.
    """
    if whole:
        raw = tl.load(x_ptr + offsets)
    else:
        raw = tl.load(x_ptr + offsets, mask=offsets < num_values, other=0)
    return widened(raw, x_ptr)


@triton.jit
def store_rows(out_ptr, offsets, values, num_values, whole):
    """Store the values whose offsets are below ``num_values``; see ``load_rows``."""
    stored = narrowed(values, out_ptr)
    if whole:
        tl.store(out_ptr + offsets, stored)
    else:
        tl.store(out_ptr + offsets, stored, mask=offsets < num_values)


@triton.jit
def split_rows(rows, ROWS: tl.constexpr):
    """Return values 0, 1, 2 and 3 of every four in [ROWS, 32], each as [8, ROWS]."""
    quads = tl.permute(tl.reshape(rows, [ROWS, 8, 2, 2]), [1, 0, 2, 3])
    even, odd = tl.split(quads)
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def join_rows(v0, v1, v2, v3, ROWS: tl.constexpr):
    """Invert ``split_rows``."""
    quads = tl.join(tl.join(v0, v2), tl.join(v1, v3))
    return tl.reshape(tl.permute(quads, [1, 0, 2, 3]), [ROWS, 32])


@triton.jit
def _level(quads, STRIDE: tl.constexpr, ROWS: tl.constexpr):
    """Do the butterfly level between quads ``STRIDE`` apart in [8, ROWS]."""
    pairs = tl.reshape(quads, [4 // STRIDE, 2, STRIDE, ROWS])
    first, second = tl.split(tl.permute(pairs, [0, 2, 3, 1]))
    joined = tl.join(first + second, first - second)
    return tl.reshape(tl.permute(joined, [0, 3, 1, 2]), [8, ROWS])


@triton.jit
def _levels(quads, ROWS: tl.constexpr):
    return _level(_level(_level(quads, 1, ROWS), 2, ROWS), 4, ROWS)


@triton.jit
def transform(v0, v1, v2, v3, ROWS: tl.constexpr):
    """Transform rows in the form of ``split_rows``: strides 1, 2, then 4, 8 and 16."""
    w0, w1, w2, w3 = v0 + v1, v0 - v1, v2 + v3, v2 - v3
    v0, v1, v2, v3 = w0 + w2, w1 + w3, w0 - w2, w1 - w3
    return _levels(v0, ROWS), _levels(v1, ROWS), _levels(v2, ROWS), _levels(v3, ROWS)


@triton.jit
def _hadamard_kernel(
    x_ptr, num_read, out_ptr, num_written, FACTOR: tl.constexpr, ROWS: tl.constexpr
):
    """One program transforms ``ROWS`` rows of 32 values."""
    first = tl.program_id(0).to(tl.int64) * (ROWS * 32)
    end = first + ROWS * 32
    offsets = first + (tl.arange(0, ROWS)[:, None] * 32 + tl.arange(0, 32)[None, :])
    rows = load_rows(x_ptr, offsets, num_read, end <= num_read)
    v0, v1, v2, v3 = split_rows(rows, ROWS)
    v0, v1, v2, v3 = transform(v0, v1, v2, v3, ROWS)
    rows = join_rows(v0, v1, v2, v3, ROWS) * FACTOR
    store_rows(out_ptr, offsets, rows, num_written, end <= num_written)


def carrier(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` flat, bfloat16 as int16: Triton's interpreter does not round bfloat16 right."""
    flat = x.view(-1)
    return flat.view(torch.int16) if x.dtype == torch.bfloat16 else flat


def transform_into(x: torch.Tensor, out: torch.Tensor, *, inverse: bool) -> None:
    """Transform the contiguous ``x`` into the contiguous ``out``, both of any float dtype.

    What ``x`` lacks to whole rows counts as zero, and what exceeds ``out`` is not stored.
    """
    num_tiles = triton.cdiv(out.numel(), ORDER * _ROWS)
    if num_tiles == 0:
        return
    launch: Any = _hadamard_kernel[(num_tiles,)]
    with torch.cuda.device_of(x):
        launch(
            carrier(x),
            x.numel(),
            carrier(out),
            out.numel(),
            FACTOR=ORDER**-1 if inverse else 1.0,
            ROWS=_ROWS,
            num_warps=_ROWS // 32,
            enable_fp_fusion=False,
        )


def hadamard(x: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """See ``reference.hadamard``."""
    out = torch.empty_like(x)
    transform_into(x, out, inverse=inverse)
    return out
