"""Bounded quantization of one tensor in Triton."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.quantize.gpu.values import (
    bits_of,
    from_bits,
    load_values,
    quantize_values,
    store_values,
)
from tersor.kernels.quantize.grid import Grid
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import are_aligned

_TILE: Final = 4096


@triton.jit
def _quantize_tile(
    x, position, num_values, step, inverse, bound, codes, is_outlier, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    values = load_values(x.to(tl.int64), position, num_values, 0.0, TYPE, ALIGNED, WHOLE)
    found, held = quantize_values(
        values, from_bits(step, TYPE), from_bits(inverse, TYPE), from_bits(bound, TYPE), TYPE
    )
    outlier = 1 - held.to(tl.int8)
    if WHOLE:
        tl.store(codes + position, found)
        tl.store(is_outlier + position, outlier)
    else:
        tl.store(codes + position, found, mask=position < num_values)
        tl.store(is_outlier + position, outlier, mask=position < num_values)


@jit_kernel(do_not_specialize=["num_values", "step", "inverse", "bound"])
def _quantize_kernel(
    x, num_values, step, inverse, bound, codes, is_outlier, TYPE: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program quantizes ``TILE`` values; ``step``, ``inverse`` and ``bound`` are float64 bits."""
    start = tl.program_id(0).to(tl.int64) * TILE
    position = start + tl.arange(0, TILE)
    # only the last tile is masked, because a mask prevents wide loads and stores
    if start + TILE <= num_values:
        _quantize_tile(
            x, position, num_values, step, inverse, bound, codes, is_outlier, TYPE, ALIGNED, True
        )
    else:
        _quantize_tile(
            x, position, num_values, step, inverse, bound, codes, is_outlier, TYPE, ALIGNED, False
        )


def bounded_quantize(x: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.bounded_quantize``; waits for the device once, for the number of outliers."""
    codes = torch.empty(x.numel(), dtype=torch.int32, device=x.device)
    is_outlier = torch.empty(x.numel(), dtype=torch.int8, device=x.device)
    if x.numel() == 0:
        return codes, torch.empty(0, dtype=torch.int64, device=x.device)
    numbers = (bits_of(grid.step), bits_of(grid.inverse), bits_of(grid.bound))
    x = x.reshape(-1)
    _quantize_kernel[(ceil_div(x.numel(), _TILE),)](
        x.view(_carrier(x.dtype)), x.numel(), *numbers, codes, is_outlier, TYPE=TYPES[x.dtype],
        ALIGNED=are_aligned([x]), TILE=_TILE,
    )  # fmt: skip
    return codes, torch.nonzero(is_outlier.view(torch.bool)).view(-1)


@jit_kernel(do_not_specialize=["num_codes", "step"])
def _dequantize_kernel(
    codes, num_codes, step, out, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr
):
    """One program decodes ``TILE`` codes; ``step`` is float64 bits."""
    start = tl.program_id(0).to(tl.int64) * TILE
    position = start + tl.arange(0, TILE)
    factor = from_bits(step, TYPE)
    if start + TILE <= num_codes:
        values = tl.load(codes + position).to(factor.dtype) * factor
        store_values(out.to(tl.int64), position, values, num_codes, TYPE, ALIGNED, True)
    else:
        found = tl.load(codes + position, mask=position < num_codes, other=0)
        values = found.to(factor.dtype) * factor
        store_values(out.to(tl.int64), position, values, num_codes, TYPE, ALIGNED, False)


def bounded_dequantize(codes: torch.Tensor, step: float, out: torch.Tensor) -> None:
    """See ``reference.bounded_dequantize``."""
    if out.numel() == 0:
        return
    _dequantize_kernel[(ceil_div(out.numel(), _TILE),)](
        codes, out.numel(), bits_of(step), out.view(-1).view(_carrier(out.dtype)),
        TYPE=TYPES[out.dtype], ALIGNED=are_aligned([out]), TILE=_TILE,
    )  # fmt: skip


def _carrier(dtype: torch.dtype) -> Any:
    """Return the dtype in which a kernel receives values: their own, but int16 for bfloat16."""
    return torch.int16 if dtype == torch.bfloat16 else dtype
