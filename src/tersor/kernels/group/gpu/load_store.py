"""Tiles of whole groups as rows of 32 values in Triton: read, searched for magnitudes, written.

Rows have the form of ``transform.gpu.split_rows``, those of the groups' lower halves and those of
their upper ones, one for each. A group of 32 is one lower row, and its upper one means nothing. All
is counted from the start of the tile. ``pack`` says what plain rows are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.group.gpu.generic import magnitudes
from tersor.kernels.transform.gpu import join_rows, load_values, split_rows, store_values, transform

INFINITE_BITS = tl.constexpr(0x7F800000)


@triton.jit
def _load_tile(x_ptr, base_ptr, offsets, num_values, WHOLE: tl.constexpr):
    """Return the values before ``num_values``, less those of a base, and zeros.

    Unless ``WHOLE`` is 0 the values mean nothing where there are fewer than that: a mask that told
    them apart would keep loads from being wide.
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
    """Return lower and upper rows of values, less those of a base, transformed if asked.

    What follows ``num_values`` counts as zero; ``PLAIN`` rows mean nothing unless they are whole.
    """
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    GROUPS: tl.constexpr = ROWS // PER_GROUP
    WHOLE: tl.constexpr = GROUPS * GROUP if PLAIN else 0
    if HADAMARD and GROUP != 32:
        # values change threads anyway, and halves are told apart on the way
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
    """Return the bits of the largest magnitude of each pair of rows: a NaN if there is one."""
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
    """Store rows, after the inverse transform if asked, or add them to what is there.

    Nothing is stored from ``num_values`` on. ``PLAIN`` rows all lie before that, and have been
    scaled for the transform.
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
            # the NaN of an addition differs between devices
            values = tl.where(tl.abs(values) <= float("inf"), values, float("nan"))
        store_values(out_ptr + offsets, values, offsets < num_values, False, ADD)
