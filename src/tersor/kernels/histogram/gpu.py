"""Symbol counts in Triton, left on the device."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.symbols.alphabet import NARROW

_TILE: Final = 8192
_PROGRAMS: Final = 1056
"""Programs that share the tiles: eight for each of an H200's 132 multiprocessors."""
_COPIES: Final = 16
"""Tables that share the counts of a wide alphabet, so that fewer additions meet in one place."""


@triton.jit
def _narrow_kernel(symbols, num_symbols, counts, BINS: tl.constexpr, TILE: tl.constexpr):
    """One program counts every so many tiles in registers, then adds its counts to the table."""
    found = tl.zeros([BINS], dtype=tl.int32)
    num_dead = 0
    first = tl.program_id(0).to(tl.int64) * TILE
    for start in range(first, num_symbols, tl.num_programs(0) * TILE):
        position = start + tl.arange(0, TILE)
        inside = position < num_symbols
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        found += tl.histogram(symbol, BINS)
        num_dead += TILE - tl.sum(inside.to(tl.int32), axis=0)
    bins = tl.arange(0, BINS)
    # what lies beyond the end was read as symbol 0
    found -= tl.where(bins == 0, num_dead, 0)
    tl.atomic_add(counts + bins, found.to(tl.int64), mask=found > 0)


@triton.jit
def _wide_kernel(
    symbols, num_symbols, counts, BINS: tl.constexpr, COPIES: tl.constexpr, TILE: tl.constexpr
):
    """One program adds every symbol of a tile to one copy of the table."""
    position = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = position < num_symbols
    symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
    copy = counts + (tl.program_id(0) % COPIES) * BINS
    tl.atomic_add(copy + symbol, tl.full([TILE], 1, tl.int64), mask=inside)


def symbol_counts(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """Return int64 [copies, bins]; the sum over copies counts each symbol, bins >= alphabet."""
    bins = max(32, triton.next_power_of_2(alphabet))
    num_tiles = triton.cdiv(symbols.numel(), _TILE)
    if alphabet <= NARROW:
        counts = torch.zeros((1, bins), dtype=torch.int64, device=symbols.device)
        grid = (min(num_tiles, _PROGRAMS),)
        _narrow_kernel[grid](symbols, symbols.numel(), counts, BINS=bins, TILE=_TILE, num_warps=8)
        return counts
    counts = torch.zeros((_COPIES, bins), dtype=torch.int64, device=symbols.device)
    _wide_kernel[(num_tiles,)](
        symbols, symbols.numel(), counts, BINS=bins, COPIES=_COPIES, TILE=_TILE
    )
    return counts
