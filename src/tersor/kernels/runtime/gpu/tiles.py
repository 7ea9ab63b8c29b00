"""Tables on the device that let one launch work on many tensors.

Tables of shapes are cached: in a training loop, where shapes repeat, only addresses are uploaded.
Where addresses repeat too (a replayed CUDA graph), nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tersor.kernels.runtime.device_cache import (
    cached_on_stream,
    check_substituted,
    copy_async,
    to_device_async,
)


@dataclass(frozen=True, slots=True)
class TileTable:
    """Which tensor each tile belongs to.

    Attributes:
        counts: int64 [num_tensors], values per tensor.
        first_tiles: int64 [num_tensors + 1], the first tile of each tensor, then ``num_tiles``.
        owners: int32 [num_tiles], the tensor of each tile.
        num_tiles: total over all tensors; a tensor without values has one tile, so that there is a
            program to write its header.
    """

    counts: torch.Tensor
    first_tiles: torch.Tensor
    owners: torch.Tensor
    num_tiles: int


@cached_on_stream
def tile_table(numels: tuple[int, ...], tile: int, device: torch.device) -> TileTable:
    """Return the table of tensors with ``numels`` values, cut into tiles of ``tile`` values."""
    counts = torch.tensor(numels, dtype=torch.int64, device="cpu")
    num_tiles = ((counts + (tile - 1)) // tile).clamp(min=1)
    first_tiles = torch.cat([num_tiles.new_zeros(1), num_tiles.cumsum(0)])
    owners = torch.arange(len(numels), dtype=torch.int32, device="cpu").repeat_interleave(num_tiles)
    total = int(first_tiles[-1])
    return TileTable(
        copy_async(counts, device),
        copy_async(first_tiles, device),
        copy_async(owners, device),
        total,
    )


@triton.jit
def sum_tiles(numbers, first_tiles, k, LANES: tl.constexpr):
    """Replace the numbers of the tiles of tensor ``k`` by their inclusive prefix sums; return the total."""
    end = tl.load(first_tiles + k + 1)
    total = tl.full((), 0, tl.int64)
    for start in range(tl.load(first_tiles + k), end, LANES):
        tile = start + tl.arange(0, LANES)
        found = tl.load(numbers + tile, mask=tile < end, other=0)
        tl.store(numbers + tile, total + tl.cumsum(found, axis=0), mask=tile < end)
        total += tl.sum(found, axis=0)
    return total


@triton.jit
def sum_before_in_tensor(ends, begin, tile):
    """Return the sum over the tiles before ``tile`` of a tensor whose first tile is ``begin``."""
    return tl.load(ends + tile - 1, mask=tile > begin, other=0)


def addresses(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the address of each tensor's first value, int64 [num_tensors] on the device."""
    numbers = tuple([x.data_ptr() for x in tensors])
    check_substituted(address_table, numbers, device)
    return address_table(numbers, device)


@cached_on_stream
def address_table(numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return addresses as int64 [num_tensors] on the device."""
    return to_device_async(numbers, torch.int64, device)


@cached_on_stream
def bound_table(bounds: tuple[tuple[float, bool], ...], device: torch.device) -> torch.Tensor:
    """Return float64 [num_tensors, 2]: the bound's value, and 1 where it is relative."""
    return to_device_async(bounds, torch.float64, device)


def are_aligned(tensors: Sequence[torch.Tensor]) -> bool:
    """True if every tensor starts at a multiple of 16 bytes, so that loads can be wide."""
    return all(x.data_ptr() % 16 == 0 for x in tensors)


@triton.jit
def padded(nbytes):
    """Round up to a multiple of 8."""
    return (nbytes + 7) // 8 * 8


@triton.jit
def num_parts(count, SIZE: tl.constexpr):
    """Return how many parts of ``SIZE`` hold ``count`` values, int64.

    ``count + SIZE - 1`` alone, and ``tl.cdiv``, wrap where ``count`` is an int32 just below 2**31.
    """
    return (count.to(tl.int64) + (SIZE - 1)) // SIZE


@triton.jit
def sum_before(ends, tile):
    """Return the sum over all tiles before ``tile`` (which may be a tensor), from inclusive prefix sums."""
    return tl.load(ends + tile - 1, mask=tile > 0, other=0)


@triton.jit
def store_zeros(target, count, LIMIT: tl.constexpr):
    """Write ``count`` zero bytes, fewer than the constant ``LIMIT``."""
    k = tl.arange(0, LIMIT)
    tl.store(target + k, tl.zeros([LIMIT], dtype=tl.uint8), mask=k < count)
