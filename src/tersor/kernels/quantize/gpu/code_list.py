"""Quantization of a list of tensors to int8 or int16 codes in Triton.

The benchmarks feed these codes to third-party lossless coders. One launch quantizes all tensors, as in
tersor's own list codecs, so that the quantizer does not slow down the results of those coders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.quantize.gpu.finite_range import TILE as RANGE_TILE
from tersor.kernels.quantize.gpu.finite_range import fold_ranges, key_dtype
from tersor.kernels.quantize.gpu.grids import grid_table
from tersor.kernels.quantize.gpu.values import load_values, quantize_values, store_values
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, bound_table, tile_table

TILE: Final = 4096
"""The codes of each tensor start at a multiple of this, so no table of offsets is needed."""


@dataclass(frozen=True, slots=True)
class CodeList:
    """Codes of several tensors.

    Attributes:
        codes: int8 or int16; the codes of tensor ``k`` start at ``starts[k]``.
        starts: multiples of ``TILE``, on the host.
        grids: [num_tensors, 3], see ``grid_table``.
        num_outliers: int32 [1] on the device, the number of values without a code; these decode to 0.
    """

    codes: torch.Tensor
    starts: tuple[int, ...]
    grids: torch.Tensor
    num_outliers: torch.Tensor


@jit_kernel()
def _quantize_kernel(
    starts, counts, first_tiles, owners, grids, codes, num_outliers, RADIUS: tl.constexpr,
    TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program quantizes a tile of one tensor."""
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    base, count = (tile - tl.load(first_tiles + k)) * TILE, tl.load(counts + k)
    address, place = tl.load(starts + k), tl.arange(0, TILE)
    step, inverse = tl.load(grids + 3 * k), tl.load(grids + 3 * k + 1)
    if base + TILE <= count:
        values = load_values(address, base + place, count, 0.0, TYPE, ALIGNED, True)
    else:
        values = load_values(address, base + place, count, 0.0, TYPE, ALIGNED, False)
    found, holds = quantize_values(values, step, inverse, tl.load(grids + 3 * k + 2), TYPE)
    fits = holds & (tl.abs(found) <= RADIUS)
    # unmasked: the gap up to the next tensor's codes belongs to the buffer
    in_range = tl.where(fits, found, 0).to(codes.dtype.element_ty)
    tl.store(codes + tile * TILE + place, in_range)
    missed = tl.sum(((base + place < count) & ~fits).to(tl.int32), axis=0)
    if missed > 0:
        tl.atomic_add(num_outliers, missed)


@jit_kernel()
def _dequantize_kernel(
    targets, counts, first_tiles, owners, grids, codes, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program decodes a tile of one tensor."""
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    base, count = (tile - tl.load(first_tiles + k)) * TILE, tl.load(counts + k)
    address, place, step = tl.load(targets + k), tl.arange(0, TILE), tl.load(grids + 3 * k)
    values = tl.load(codes + tile * TILE + place).to(step.dtype) * step
    if base + TILE <= count:
        store_values(address, base + place, values, count, TYPE, ALIGNED, True)
    else:
        store_values(address, base + place, values, count, TYPE, ALIGNED, False)


def quantize_list(
    xs: Sequence[torch.Tensor], error_bounds: Sequence[float], dtype: torch.dtype
) -> CodeList:
    """Quantize contiguous tensors of one dtype and device to codes of ``dtype``, without waiting.

    The range of every tensor is computed too, as a relative bound would need it, though the bounds
    are absolute.

    Args:
        xs: the tensors to quantize, none empty.
        error_bounds: the absolute bound of each.
        dtype: int8 or int16; codes that do not fit count as outliers.
    """
    device, element, aligned = xs[0].device, TYPES[xs[0].dtype], are_aligned(xs)
    numels = tuple(x.numel() for x in xs)
    starts = addresses(xs, device)
    keys = torch.zeros(2 * len(xs), dtype=key_dtype(xs[0].dtype), device=device)
    fold_ranges(starts, tile_table(numels, RANGE_TILE, device), keys, xs[0].dtype, aligned)
    bounds = bound_table(tuple((bound, False) for bound in error_bounds), device)
    grids = grid_table(keys, bounds, xs[0].dtype)
    tiles = tile_table(numels, TILE, device)
    codes = torch.empty(tiles.num_tiles * TILE, dtype=dtype, device=device)
    num_outliers = torch.zeros(1, dtype=torch.int32, device=device)
    _quantize_kernel[(tiles.num_tiles,)](
        starts, tiles.counts, tiles.first_tiles, tiles.owners, grids, codes, num_outliers,
        RADIUS=torch.iinfo(dtype).max, TYPE=element, ALIGNED=aligned, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return CodeList(codes, code_starts(numels), grids, num_outliers)


def code_starts(numels: Sequence[int]) -> tuple[int, ...]:
    """Return where the codes of each tensor start in a ``CodeList``."""
    starts, end = [], 0
    for numel in numels:
        starts.append(end)
        end += ceil_div(numel, TILE) * TILE
    return tuple(starts)


def dequantize_list(codes: torch.Tensor, grids: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
    """Decode ``codes``, laid out as in a ``CodeList``, into ``outs``, without waiting."""
    device, dtype = codes.device, outs[0].dtype
    tiles = tile_table(tuple(y.numel() for y in outs), TILE, device)
    _dequantize_kernel[(tiles.num_tiles,)](
        addresses(outs, device), tiles.counts, tiles.first_tiles, tiles.owners, grids, codes,
        TYPE=TYPES[dtype], ALIGNED=are_aligned(outs), TILE=TILE, num_warps=8,
    )  # fmt: skip
