"""What encoding a quantized tensor gives, before it is a payload."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tersor.raw_bytes import padded


class Body(NamedTuple):
    """Step of the grid, coded bytes, and the outliers by position (int64) and value.

    ``data`` begins with as many bytes of room as its maker was asked for: with room for a header, a
    large body need not be copied to get one.
    """

    step: float
    data: torch.Tensor
    positions: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Size of room, coded bytes and outliers, each part padded to a multiple of 8."""
        num_outliers = self.positions.numel()
        if num_outliers == 0:
            return self.data.numel()
        return self.data.numel() + padded(4 * num_outliers) + padded(self.values.nbytes)
