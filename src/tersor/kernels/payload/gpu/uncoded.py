"""Triton functions for values that are not coded: ranges, outliers and exactly stored values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import triton
import triton.language as tl

from tersor.kernels.payload.gpu.open import copy_values
from tersor.kernels.payload.gpu.plan import (
    CODED,
    CONSTANT,
    HEADER_NBYTES,
    MODE,
    OUTLIERS,
    place_outliers,
)
from tersor.kernels.quantize.gpu.finite_range import fold_range
from tersor.kernels.quantize.gpu.values import as_compute, load_values, store_values

_WARPS: Final = 4224
"""Total number of warps of the programs for values that are not coded: as many as an H200 holds."""


def programs_per_tensor(numels: Sequence[int], tile: int, num_warps: int) -> int:
    """Return how many programs, of ``num_warps`` each, ``finish_tiles`` gets per tensor."""
    return max(1, min(_WARPS // (num_warps * len(numels)), max(numels) // tile))


@triton.jit
def load_grid(grids, k):
    """Load step, inverse and checked bound of tensor ``k``."""
    return tl.load(grids + 3 * k), tl.load(grids + 3 * k + 1), tl.load(grids + 3 * k + 2)


@triton.jit
def examine_tile(address, limit, keys, TYPE: tl.constexpr, PART: tl.constexpr):
    """Fold ``limit`` values into the range of their tensor; return how many of them are not finite."""
    specials = 0
    for part in range(0, limit, PART):
        position = part + tl.arange(0, PART)
        values = load_values(address, position, limit, float("nan"), TYPE, False, False)
        fold_range(values, keys, TYPE)
        special = (position < limit) & ~(tl.abs(values) < float("inf"))
        specials += tl.sum(special.to(tl.int32), axis=0)
    return specials


@triton.jit
def finish_tiles(
    payload, row, address, count, first, last, ends, num_tiles, grid, TYPE: tl.constexpr,
    TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Store the exact values, or the outliers, of this program's share of the tiles ``[first, last)``.

    The programs along axis 1 of the grid share the tiles. Coding kernels do not do this themselves, because
    they need fewer registers without it, and tensors that are not coded and tiles with outliers are rare.
    """
    mode = tl.load(row + MODE)
    is_exact = (mode != CODED) & (mode != CONSTANT)
    if is_exact | (tl.load(row + OUTLIERS) > 0):
        for tile in range(first + tl.program_id(1), last, tl.num_programs(1)):
            if is_exact:
                begin, end = (tile - first) * TILE, tl.minimum((tile + 1 - first) * TILE, count)
                copy_values(address, (payload + HEADER_NBYTES).to(tl.int64), begin, end, TYPE)
            else:
                place_outliers(
                    payload, row, address, count, tile, tile + 1, first, ends, num_tiles, grid,
                    TYPE, TILE, PART,
                )  # fmt: skip


@triton.jit
def fill_uncoded(payload, mode, number, count, address, TYPE: tl.constexpr, PART: tl.constexpr):
    """Decode this program's share of a tensor whose payload is constant or exact, in runs of ``PART`` values.

    The programs along axis 1 take the runs in turn. ``mode`` and ``number`` come from ``open_payload``, which must
    have found the payload good.
    """
    begin, stride = tl.program_id(1).to(tl.int64) * PART, tl.num_programs(1) * PART
    if mode == CONSTANT:
        for start in range(begin, count, stride):
            values = as_compute(tl.zeros([PART], dtype=tl.float64) + number, TYPE)
            position = start + tl.arange(0, PART)
            store_values(address, position, values, count, TYPE, False, False)
    else:
        body = (payload + HEADER_NBYTES).to(tl.int64)
        for start in range(begin, count, stride):
            copy_values(body, address, start, tl.minimum(start + PART, count), TYPE)
