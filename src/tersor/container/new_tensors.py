"""New tensors to decode into, in one memory on a GPU: making 26 of them one by one takes a host 50 us."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch

from tersor.types import TensorInfo

_ALIGNMENT: Final = 16
"""Bytes; what kernels write fast starts at a multiple of it."""


@dataclass(frozen=True, slots=True)
class NewTensors:
    """Tensors of one dtype that lie one after the other in one memory, each at a multiple of 16 bytes.

    Attributes:
        shape: of the memory: that of all tensors joined along their first axis, or flat.
        lengths: of each tensor along the first axis of the memory.
        shapes: of each tensor where the memory is flat; None if its parts have them.
        starts: byte at which each begins.
        dtype: of all.
        device: of all.
    """

    shape: tuple[int, ...]
    lengths: list[int]
    shapes: list[tuple[int, ...]] | None
    starts: list[int]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, infos: Sequence[TensorInfo], device: torch.device) -> NewTensors | None:
        """Describe the tensors; None if they cannot lie so, or on the CPU, where large pages matter more."""
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
        """Return new memory for all tensors."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def pointers(self, memory: torch.Tensor) -> tuple[int, ...]:
        """Return the address of each tensor in it."""
        base = memory.data_ptr()
        return tuple([base + start for start in self.starts])

    def tensors(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors in it. Not views for autograd: writing to one does not concern the others."""
        parts = torch.unsafe_split_with_sizes(memory, self.lengths)
        if self.shapes is None:
            return list(parts)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
