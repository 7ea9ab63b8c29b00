"""Finite range in Triton: one pass, combined by atomics on integers that sort like the values.

A range is stored as two unsigned keys: that of the largest value and that of the negated smallest one.
Both are combined by maximum, and zeroed memory stands for an empty range.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.kernels.quantize.gpu.values import load_values
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import TileTable, addresses, are_aligned, tile_table

TILE = 8192
"""Values per program."""


@triton.jit
def _key(value, TYPE: tl.constexpr):
    """Return an unsigned integer that sorts like the finite value and is not 0."""
    if TYPE == F64:
        bits = value.to(tl.int64, bitcast=True)
        return (bits ^ ((bits >> 63) | (-0x7FFFFFFFFFFFFFFF - 1))).to(tl.uint64, bitcast=True)
    else:
        bits = value.to(tl.int32, bitcast=True)
        return (bits ^ ((bits >> 31) | (-0x7FFFFFFF - 1))).to(tl.uint32, bitcast=True)


@triton.jit
def _value(key, TYPE: tl.constexpr):
    """Return the float64 value of a key; -0.0 becomes 0.0."""
    if TYPE == F64:
        bits = key.to(tl.int64, bitcast=True)
        bits = bits ^ (~(bits >> 63) | (-0x7FFFFFFFFFFFFFFF - 1))
        return bits.to(tl.float64, bitcast=True) + 0.0
    else:
        bits = key.to(tl.int32, bitcast=True)
        bits = bits ^ (~(bits >> 31) | (-0x7FFFFFFF - 1))
        return bits.to(tl.float32, bitcast=True).to(tl.float64) + 0.0


@triton.jit
def fold_range(values, keys, TYPE: tl.constexpr):
    """Fold the finite ``values`` into the two keys at ``keys``."""
    finite = tl.abs(values) < float("inf")
    low = tl.min(tl.where(finite, values, float("inf")), axis=None)
    high = tl.max(tl.where(finite, values, float("-inf")), axis=None)
    pointer = keys.to(tl.pointer_type(tl.uint64 if TYPE == F64 else tl.uint32))
    if low <= high:
        tl.atomic_max(pointer, _key(high, TYPE), sem="relaxed")
        tl.atomic_max(pointer + 1, _key(-low, TYPE), sem="relaxed")


@triton.jit
def load_range(keys, k, inside, TYPE: tl.constexpr):
    """Return float64 low and high of tensors ``k`` that are ``inside``; low > high if no value is finite."""
    pointer = keys.to(tl.pointer_type(tl.uint64 if TYPE == F64 else tl.uint32)) + 2 * k
    high_key = tl.load(pointer, mask=inside, other=0)
    low_key = tl.load(pointer + 1, mask=inside, other=0)
    high = tl.where(high_key > 0, _value(high_key, TYPE), float("-inf"))
    return tl.where(low_key > 0, 0.0 - _value(low_key, TYPE), float("inf")), high


@jit_kernel()
def _range_kernel(
    starts, counts, first_tiles, owners, keys, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program folds ``TILE`` values of one tensor into its two keys."""
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    base, count = (tile - tl.load(first_tiles + k)) * TILE, tl.load(counts + k)
    address, nan = tl.load(starts + k), float("nan")
    position = base + tl.arange(0, TILE)
    # positions past the end are loaded as NaN, which is not finite and therefore ignored
    if base + TILE <= count:
        values = load_values(address, position, count, nan, TYPE, ALIGNED, True)
    else:
        values = load_values(address, position, count, nan, TYPE, ALIGNED, False)
    fold_range(values, keys + 2 * k, TYPE)


@jit_kernel()
def _read_kernel(keys, out, TYPE: tl.constexpr):
    low, high = load_range(keys, 0, True, TYPE)
    tl.store(out, low)
    tl.store(out + 1, high)


def key_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the keys of values of ``dtype`` are stored."""
    return torch.int64 if dtype == torch.float64 else torch.int32


def fold_ranges(
    starts: torch.Tensor, tiles: TileTable, keys: torch.Tensor, dtype: torch.dtype, aligned: bool
) -> None:
    """Fold each tensor of a list into its two keys.

    Args:
        starts: ``runtime.gpu.tiles.addresses`` of the tensors.
        tiles: their table for tiles of ``TILE`` values.
        keys: [num_tensors, 2] of ``key_dtype(dtype)``, zeroed.
        dtype: dtype of all tensors.
        aligned: whether every start is a multiple of 16 bytes.
    """
    _range_kernel[(tiles.num_tiles,)](
        starts, tiles.counts, tiles.first_tiles, tiles.owners, keys, TYPE=TYPES[dtype],
        ALIGNED=aligned, TILE=TILE, num_warps=4,
    )  # fmt: skip


def finite_range(x: torch.Tensor) -> torch.Tensor:
    """See ``reference.finite_range``."""
    keys = torch.zeros(2, dtype=key_dtype(x.dtype), device=x.device)
    flat = x.contiguous()
    tiles = tile_table((x.numel(),), TILE, x.device)
    fold_ranges(addresses([flat], x.device), tiles, keys, x.dtype, are_aligned([flat]))
    ends = torch.empty(2, dtype=torch.float64, device=x.device)
    _read_kernel[(1,)](keys, ends, TYPE=TYPES[x.dtype])
    return ends
