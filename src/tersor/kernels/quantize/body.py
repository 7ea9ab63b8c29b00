"""The result of encoding a quantized tensor, before it becomes a payload."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tersor.raw_bytes import padded


class Body(NamedTuple):
    """Step of the grid, coded bytes, and the outliers by position (int64) and value.

    ``data`` starts with as many reserved bytes as its producer was asked for. A header can be written
    there without copying a large body.
    """

    step: float
    data: torch.Tensor
    positions: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Size of ``data``, reserved bytes included, and of the outliers, padded to multiples of 8."""
        num_outliers = self.positions.numel()
        if num_outliers == 0:
            return self.data.numel()
        return self.data.numel() + padded(4 * num_outliers) + padded(self.values.nbytes)
