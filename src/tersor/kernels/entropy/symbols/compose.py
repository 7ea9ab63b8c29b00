"""Quantization directly to symbols and back, as the compositions that define the results."""

from __future__ import annotations

import torch

from tersor.kernels.entropy.symbols import map_symbols, unmap_symbols
from tersor.kernels.entropy.symbols.alphabet import Symbols
from tersor.kernels.quantize import Grid, bounded_dequantize, bounded_quantize


def quantize_symbols(
    x: torch.Tensor, grid: Grid, low: float, high: float
) -> tuple[Symbols, torch.Tensor]:
    """Return the mapped codes of ``x`` and the positions of the outliers.

    ``low`` and ``high`` are the finite range of ``x``. A fused implementation may derive the alphabet
    from them before it computes the codes.
    """
    del low, high
    codes, positions = bounded_quantize(x, grid)
    return map_symbols(codes), positions


def dequantize_symbols(
    mapped: torch.Tensor, other: Symbols, step: float, out: torch.Tensor
) -> None:
    """Write the values of the symbols ``mapped`` into the contiguous ``out``.

    ``other`` supplies the low code and the escapes.
    """
    bounded_dequantize(unmap_symbols(mapped, other), step, out)
