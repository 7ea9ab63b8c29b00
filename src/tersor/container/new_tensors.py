"""New tensors to decode into, in one GPU allocation: creating 26 one by one takes the host 50 us."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch

from tersor.types import TensorInfo

_ALIGNMENT: Final = 16
"""Alignment in bytes that the fast stores of kernels require."""


@dataclass(frozen=True, slots=True)
class NewTensors:
    """Layout of tensors of one dtype back to back in one allocation, each aligned to 16 bytes.

    Attributes:
        shape: of the allocation: the tensors concatenated along their first axis, or flat.
        lengths: length of each tensor along the first axis of the allocation.
        shapes: shape of each tensor if the allocation is flat; None if its parts already have it.
        starts: byte offset of each tensor.
        dtype: of all tensors.
        device: of all tensors.
    """

    shape: tuple[int, ...]
    lengths: list[int]
    shapes: list[tuple[int, ...]] | None
    starts: list[int]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, infos: Sequence[TensorInfo], device: torch.device) -> NewTensors | None:
        """Lay out the tensors; None if their dtypes or alignment do not allow it.

        It is also None on the CPU, where huge pages matter more.
        """
        if device.type == "cpu" or not infos:
            return None
        dtype, starts = infos[0].dtype, list(accumulate((info.nbytes for info in infos), initial=0))
        if any(info.dtype != dtype for info in infos):
            return None
        if math.gcd(_ALIGNMENT, *starts[:-1]) != _ALIGNMENT:
            return None
        tails = {info.shape[1:] if info.shape else None for info in infos}
        tail = tails.pop()
        if not tails and tail is not None:
            lengths = [info.shape[0] for info in infos]
            return cls((sum(lengths), *tail), lengths, None, starts[:-1], dtype, device)
        lengths, shapes = [info.numel for info in infos], [info.shape for info in infos]
        return cls((sum(lengths),), lengths, shapes, starts[:-1], dtype, device)

    def memory(self) -> torch.Tensor:
        """Allocate memory for all tensors."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def pointers(self, memory: torch.Tensor) -> tuple[int, ...]:
        """Return the address of each tensor in ``memory``."""
        base = memory.data_ptr()
        return tuple([base + start for start in self.starts])

    def tensors(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors in ``memory``; autograd does not treat them as views of each other."""
        parts = torch.unsafe_split_with_sizes(memory, self.lengths)
        if self.shapes is None:
            return list(parts)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
