"""Tiles of whole groups as rows of 32 values in Triton: loading, peak search and storing.

Rows have the layout of ``transform.gpu.split_rows``. Each lower row, from the lower half of a group,
is paired with an upper row, from the upper half. A group of 32 is one lower row; its upper row is
meaningless. Positions count from the start of the tile. ``pack`` defines plain rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.group.gpu.generic import magnitudes
from tersor.kernels.transform.gpu import join_rows, load_values, split_rows, store_values, transform

INFINITE_BITS = tl.constexpr(0x7F800000)


@triton.jit
def _load_tile(x_ptr, base_ptr, offsets, num_values, WHOLE: tl.constexpr):
    """Return the values before ``num_values``, minus those of a base, and zeros after them.

    With ``WHOLE`` above 0, the result is undefined if there are fewer than ``WHOLE`` values: a mask
    per value would keep loads from being wide.
    """
    if WHOLE != 0:
        known = tl.broadcast_to(num_values >= WHOLE, offsets.shape)
        values = load_values(x_ptr, base_ptr, offsets, known, None)
    else:
        values = load_values(x_ptr, base_ptr, offsets, offsets < num_values, 0)
    return values


@triton.jit
def read_rows(
    x_ptr,
    base_ptr,
    num_values,
    GROUP: tl.constexpr,
    HADAMARD: tl.constexpr,
    PLAIN: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return lower and upper rows of values, minus those of a base, transformed if ``HADAMARD``.

    Values from ``num_values`` on count as zero. ``PLAIN`` rows are undefined unless the tile is whole.
    """
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    GROUPS: tl.constexpr = ROWS // PER_GROUP
    WHOLE: tl.constexpr = GROUPS * GROUP if PLAIN else 0
    if HADAMARD and GROUP != 32:
        # the transform moves values between threads anyway, and separates the halves on the way
        values = _load_tile(x_ptr, base_ptr, tl.arange(0, ROWS * 64), num_values, WHOLE)
        halves = tl.permute(tl.reshape(values, [GROUPS, 2, PER_GROUP, 32]), [0, 2, 3, 1])
        lower, upper = tl.split(halves)
    else:
        starts = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, PER_GROUP)[None, :] * 32
        offsets = starts[:, :, None] + tl.arange(0, 32)[None, None, :]
        lower = _load_tile(x_ptr, base_ptr, offsets, num_values, WHOLE)
        upper = lower
        if GROUP != 32:
            upper = _load_tile(x_ptr, base_ptr, offsets + GROUP // 2, num_values, WHOLE)
    lower = split_rows(tl.reshape(lower, [ROWS, 32]))
    upper = split_rows(tl.reshape(upper, [ROWS, 32]))
    if HADAMARD:
        lower, upper = transform(lower), transform(upper)
    return lower, upper


@triton.jit
def _peak(a, b):
    return tl.maximum(tl.abs(a), tl.abs(b), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_peaks(lower, upper):
    """Return the bits of the largest magnitude of each pair of rows, those of a NaN if there is one."""
    pair = _peak(_peak(lower[0], lower[1]), _peak(lower[2], lower[3]))
    other = _peak(_peak(upper[0], upper[1]), _peak(upper[2], upper[3]))
    return tl.max(_peak(pair, other).to(tl.int32, bitcast=True), axis=0)


@triton.jit
def _keys(quads):
    pair = tl.maximum(magnitudes(quads[0]), magnitudes(quads[1]))
    other = tl.maximum(magnitudes(quads[2]), magnitudes(quads[3]))
    return tl.max(tl.maximum(pair, other), axis=0)


@triton.jit
def row_keys(lower, upper, PLAIN: tl.constexpr):
    """Return the largest magnitude key of each pair of rows."""
    if PLAIN:
        keys = row_peaks(lower, upper) + 0x00800000
    else:
        keys = tl.maximum(_keys(lower), _keys(upper))
    return keys


@triton.jit
def write_rows(
    lower,
    upper,
    out_ptr,
    num_values,
    GROUP: tl.constexpr,
    HADAMARD: tl.constexpr,
    ADD: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Store rows, after the inverse transform if ``HADAMARD``, or add them to the output if ``ADD``.

    Nothing is stored from ``num_values`` on. ``PLAIN`` rows all lie before it, and are already scaled
    for the transform.
    """
    ROWS: tl.constexpr = lower[0].shape[1]
    SIZE: tl.constexpr = ROWS * (32 if GROUP == 32 else 64)
    if HADAMARD:
        lower, upper = transform(lower), transform(upper)
    values = join_rows(lower)
    if GROUP != 32:
        halves = tl.join(values, join_rows(upper))
        halves = tl.reshape(halves, [SIZE // GROUP, GROUP // 64, 32, 2])
        values = tl.permute(halves, [0, 3, 1, 2])
    values = tl.reshape(values, [SIZE])
    offsets = tl.arange(0, SIZE)
    if PLAIN:
        store_values(out_ptr + offsets, values, None, True, ADD)
    else:
        if HADAMARD:
            values *= 0.03125
            # the NaN that an addition produces differs between devices
            values = tl.where(tl.abs(values) <= float("inf"), values, float("nan"))
        store_values(out_ptr + offsets, values, offsets < num_values, False, ADD)
