"""Group quantizer: 4 or 8 bits per value and one float32 scale per group. A fixed size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tersor.errors import SpecError
from tersor.kernels.group import group_dequantize, group_quantize
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
        return -(-numel // self.group)

    def quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scales and packed codes of a tensor of any float dtype."""
        num_values = self.num_groups(x.numel()) * self.group
        values = x.reshape(-1).to(torch.float32)
        if num_values != values.numel():
            padding = values.new_zeros(num_values - values.numel())
            values = torch.cat([values, padding])
        if self.hadamard:
            values = hadamard.forward(values)
        scales, data = group_quantize(values, self.nbits, self.group, self.seed)
        return scales, data

    def dequantize(self, scales: torch.Tensor, data: torch.Tensor, out: torch.Tensor) -> None:
        """Write the decoded values into the contiguous ``out``."""
        values = group_dequantize(data, scales, self.nbits, self.group)
        if self.hadamard:
            values = hadamard.inverse(values)
        out.view(-1).copy_(values[: out.numel()])
