"""Group quantizer: 4 or 8 bits per value and one float32 scale per group. A fixed size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tersor.division import ceil_div
from tersor.errors import SpecError
from tersor.kernels.group import group_dequantize_transform, group_transform_quantize
from tersor.stages.transforms import hadamard


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupQuantizer:
    """Symmetric absmax quantization of consecutive values.

    Values that are not finite decode to NaN and do not harm their group; with ``hadamard`` they
    make their block of 32 NaN.
    """

    nbits: int
    group: int
    seed: int | None
    hadamard: bool

    def __post_init__(self) -> None:
        """Refuse groups that cannot be packed or transformed."""
        if type(self.group) is not int or not 2 <= self.group <= 2**20 or self.group % 2:
            raise SpecError(f"group must be an even number from 2 to 1048576, not {self.group}")
        if not isinstance(self.hadamard, bool):
            raise SpecError(f"hadamard must be true or false, not {self.hadamard!r}")
        if self.hadamard and self.group % hadamard.ORDER:
            raise SpecError(f"with hadamard, group must be a multiple of 32, not {self.group}")

    def num_groups(self, numel: int) -> int:
        """Groups for ``numel`` values, the last one padded with zeros."""
        return ceil_div(numel, self.group)

    def quantize(self, x: torch.Tensor, scales: torch.Tensor, data: torch.Tensor) -> None:
        """Write the scales and packed codes of a tensor of any float dtype."""
        group_transform_quantize(
            x.reshape(-1), self.nbits, self.group, self.seed, self.hadamard, (scales, data)
        )

    def dequantize(self, scales: torch.Tensor, data: torch.Tensor, out: torch.Tensor) -> None:
        """Write the decoded values into the contiguous ``out``."""
        group_dequantize_transform(data, scales, self.nbits, self.group, self.hadamard, out)
