"""Quantization and decoding of tiles of whole groups in Triton.

A tile is first assumed to be plain, as ``pack`` defines it; if it is not, it is read again.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.group.gpu.generic import hashes_of, scales_of
from tersor.kernels.group.gpu.load_store import (
    INFINITE_BITS,
    read_rows,
    row_keys,
    row_peaks,
    write_rows,
)
from tersor.kernels.group.gpu.pack import pack_rows, read_sum

_ROWS_PER_WARP: Final = 32
"""Each thread holds one lower and one upper row: 64 values, as many as fit into registers."""

_MIN_ROWS: Final = 32
"""Lower rows that a program takes, unless a group has more."""


def num_rows_of(group: int) -> int:
    """Return the lower rows of a tile, for a group size that ``group.layout.is_held_whole`` accepts."""
    return max(_MIN_ROWS, group // 64)


def num_warps_of(group: int) -> int:
    """Return the warps that a tile takes."""
    return num_rows_of(group) // _ROWS_PER_WARP


def num_values_of(group: int) -> int:
    """Return the values of a tile."""
    return num_rows_of(group) * (32 if group == 32 else 64)


@triton.jit
def _write_scales(keys, scales_ptr, num_groups, NBITS: tl.constexpr, GROUPS: tl.constexpr):
    """Store the scales of whole groups; return the reciprocal scale of each row."""
    per_group: tl.constexpr = keys.shape[0] // GROUPS
    largest = tl.max(tl.reshape(keys, [GROUPS, per_group]), axis=1)
    scales, inverse = scales_of(largest, NBITS)
    groups = tl.arange(0, GROUPS)
    tl.store(scales_ptr + groups, scales, mask=groups < num_groups)
    return tl.reshape(tl.broadcast_to(inverse[:, None], [GROUPS, per_group]), [keys.shape[0]])


@triton.jit
def quantize_rows(
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
    """Quantize the groups from ``first`` on.

    Args:
        lower: values in the layout of ``split_rows``.
        upper: values in the layout of ``split_rows``.
        target: pointers to scales and words of fields, and the number of groups of the whole tensor.
        first: the tile's first group.
        seed: the two words of the seed.
        NBITS: 8 or 4.
        GROUP: values per scale.
        STOCHASTIC: whether to round stochastically.
        PLAIN: whether all groups of the tile exist and are plain.
    """
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


@triton.jit
def quantize_tile(
    x_ptr, base_ptr, num_values, target, tile, seed, NBITS: tl.constexpr,
    STOCHASTIC: tl.constexpr, HADAMARD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Quantize the groups of tile ``tile``, which has ``ROWS`` lower rows.

    ``x_ptr`` points to ``num_values`` values. Those of ``base_ptr`` are subtracted unless it is None.
    ``target`` and ``seed`` are as in ``quantize_rows``.
    """
    GROUPS: tl.constexpr = ROWS if GROUP == 32 else ROWS * 64 // GROUP
    first = tile * GROUPS
    x_ptr += first * GROUP
    if base_ptr is not None:
        base_ptr += first * GROUP
    num_values -= first * GROUP
    lower, upper = read_rows(x_ptr, base_ptr, num_values, GROUP, HADAMARD, True, ROWS)
    is_finite = tl.max(row_peaks(lower, upper), axis=0) < INFINITE_BITS
    if is_finite & (num_values >= GROUPS * GROUP):
        quantize_rows(lower, upper, target, first, seed, NBITS, GROUP, STOCHASTIC, True)
    else:
        lower, upper = read_rows(x_ptr, base_ptr, num_values, GROUP, HADAMARD, False, ROWS)
        quantize_rows(lower, upper, target, first, seed, NBITS, GROUP, STOCHASTIC, False)


@triton.jit
def dequantize_tile(
    sent, num_groups, out_ptr, num_values, tile, NBITS: tl.constexpr, HADAMARD: tl.constexpr,
    ADD: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Decode the sum over senders of the groups of tile ``tile``, which has ``ROWS`` lower rows.

    ``sent`` has the fields of ``group.gpu.generic.PackedGroups``, with data as words.
    """
    PER_GROUP: tl.constexpr = 1 if GROUP == 32 else GROUP // 64
    GROUPS: tl.constexpr = ROWS // PER_GROUP
    FACTOR: tl.constexpr = 0.03125 if HADAMARD else 1.0
    first = tile * GROUPS
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
