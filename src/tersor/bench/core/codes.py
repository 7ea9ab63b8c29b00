"""Quantized codes for peers that have no quantizer of their own, and their entropy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from tersor.errors import SpecError
from tersor.kernels.quantize import Grid, bounded_dequantize, bounded_quantize, finite_range

_BLOCK_VALUES: Final = 1 << 17
_OUTLIER_NBYTES: Final = 8 + 4
_HEADER_NBYTES: Final = 8 + 4
"""The grid's step as float64 and the number of outliers."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Integer codes of a float32 tensor, and the outliers that have no code.

    Attributes:
        values: the codes as int8 or int16, flat and contiguous.
        step: distance between quantization levels.
        positions: int64 positions of the outliers.
        outlier_values: exact values of the outliers.
    """

    values: torch.Tensor
    step: float
    positions: torch.Tensor
    outlier_values: torch.Tensor

    @property
    def side_nbytes(self) -> int:
        """Bytes that a file needs in addition to the codes: header, outlier positions and values."""
        return _HEADER_NBYTES + _OUTLIER_NBYTES * self.positions.numel()

    def without_values(self) -> Codes:
        """Return a copy without the codes, with what has to accompany a compressed payload."""
        return replace(self, values=self.values[:0])


def quantize(x: torch.Tensor, error_bound: float, dtype: torch.dtype | None = None) -> Codes:
    """Quantize float32 values to int8 or int16 codes, by default the narrowest that holds them.

    Without a ``dtype``, codes beyond int16 become outliers. Codes never wrap.

    Raises:
        SpecError: a code does not fit ``dtype``, or the error bound leaves nothing to quantize.
    """
    grid = Grid.for_bound(error_bound, x.dtype)
    if grid is None:
        raise SpecError(f"an error bound of {error_bound} leaves nothing to quantize")
    dtype = code_dtype(x, grid, dtype)
    grid = replace(grid, radius=torch.iinfo(dtype).max)
    flat = x.reshape(-1)
    values = torch.empty(flat.numel(), dtype=dtype, device=x.device)
    positions = [torch.empty(0, dtype=torch.int64, device=x.device)]
    # on the CPU, blocks keep the kernel's int32 codes in the cache until they are narrowed
    block = _BLOCK_VALUES if x.device.type == "cpu" else max(1, flat.numel())
    for start in range(0, flat.numel(), block):
        codes, outliers = bounded_quantize(flat[start : start + block], grid)
        values[start : start + block] = codes
        positions.append(outliers + start)
    merged = torch.cat(positions)
    return Codes(values, grid.step, merged, flat[merged])


def code_dtype(x: torch.Tensor, grid: Grid, asked: torch.dtype | None) -> torch.dtype:
    """Return ``asked``, or the narrowest of int8 and int16 if it is None.

    Raises:
        SpecError: a code does not fit ``asked``.
    """
    low, high = finite_range(x).tolist()
    peak = max(abs(low), abs(high)) * grid.inverse
    if asked is None:
        return torch.int8 if peak + 1 <= torch.iinfo(torch.int8).max else torch.int16
    if round(peak) > torch.iinfo(asked).max:
        raise SpecError(
            f"codes reach {peak:.0f}, more than the {torch.iinfo(asked).max} of "
            f"{str(asked).removeprefix('torch.')}; choose int16 or auto, or a looser bound"
        )
    return asked


def dequantize(codes: Codes, values: torch.Tensor, out: torch.Tensor) -> None:
    """Decode ``values`` (the codes as restored from a payload) into the contiguous ``out``."""
    bounded_dequantize(values, codes.step, out)
    if codes.positions.numel():
        out.view(-1)[codes.positions] = codes.outlier_values


def entropy_nbits(codes: torch.Tensor) -> float:
    """Return the order-0 entropy of all codes in total bits, a lower bound for any symbol coder."""
    if codes.numel() == 0:
        return 0.0
    # int8 and int16 codes: counting is ten times faster than sorting
    lowest = torch.iinfo(codes.dtype).min
    counts = torch.bincount(codes.to(torch.int32) - lowest)
    counts = counts[counts > 0].to(torch.float64)
    return float(-(counts * torch.log2(counts / codes.numel())).sum())
