"""Comparison of two arrays, block by block and without tolerance."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from tersor.types import FLOAT_DTYPES

_BLOCK_VALUES: Final = 1 << 20
_LongDouble: Final = np.longdouble


class Comparison:
    """Accumulated comparison of an original with a decoded array.

    Differences are computed in float64, or in long double if a side has 8-byte values. NaN matches only
    NaN, and an infinity only the same infinity.

    Attributes:
        num_values: number of values compared.
        num_mismatches: positions where only one side is finite, or where two non-finite values differ.
        max_error: largest difference of two finite values.
        low: smallest finite value of the original.
        high: largest finite value of the original.
    """

    def __init__(self) -> None:
        self.num_values = 0
        self.num_mismatches = 0
        self.max_error = _LongDouble(0)
        self.low = math.inf
        self.high = -math.inf
        self._num_finite = 0
        self._squared_error = _LongDouble(0)

    def add(self, original: torch.Tensor, decoded: torch.Tensor) -> None:
        """Compare two flat pieces of equal length, and accumulate the result."""
        for start in range(0, original.numel(), _BLOCK_VALUES):
            stop = start + _BLOCK_VALUES
            self._add_block(_wide(original[start:stop]), _wide(decoded[start:stop]))

    def _add_block(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        self.num_values += x.size
        finite_x, finite_y = np.isfinite(x), np.isfinite(y)
        special = ~(finite_x & finite_y)
        if special.any():
            agree = (x[special] == y[special]) | (np.isnan(x[special]) & np.isnan(y[special]))
            self.num_mismatches += int((~agree).sum())
        if finite_x.any():
            self.low = min(self.low, float(x[finite_x].min()))
            self.high = max(self.high, float(x[finite_x].max()))
        if special.any():
            x, y = x[~special], y[~special]
        if x.size:
            error = np.abs(x - y)
            self.max_error = max(self.max_error, _LongDouble(error.max()))
            self._squared_error += np.square(error, dtype=_LongDouble).sum()
            self._num_finite += x.size

    @property
    def psnr_db(self) -> float | None:
        """Peak signal-to-noise ratio in decibels, relative to the original's range.

        None if it is not finite: nothing differs, or the original is constant.
        """
        width = _LongDouble(self.high) - _LongDouble(self.low)
        if self._squared_error == 0 or not width > 0:
            return None
        mean_squared = self._squared_error / self._num_finite
        return float(20 * np.log10(width) - 10 * np.log10(mean_squared))

    def holds(self, error_bound: float) -> bool:
        """True if every value is within ``error_bound`` and all NaN and infinities match."""
        return self.num_mismatches == 0 and bool(self.max_error <= _LongDouble(error_bound))


def _wide(x: torch.Tensor) -> npt.NDArray[Any]:
    """Widen the values so that subtracting two of them loses no relevant precision."""
    if x.dtype.is_complex:
        x = torch.view_as_real(x).reshape(-1)
    narrow = x.dtype.is_floating_point and x.dtype not in FLOAT_DTYPES
    if narrow or x.dtype == torch.bfloat16:
        x = x.to(torch.float32)
    wide = _LongDouble if x.dtype.itemsize == 8 else np.float64
    return x.numpy().astype(wide)
