"""The result of a fused encoder for a list of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch

from tersor.kernels.batch.encoded_list import Unwritten


class FusedList(NamedTuple):
    """Payloads of a list, all on the device.

    Attributes:
        sizes: int64 [num_tensors], bytes of each payload.
        memory: uint8, the payloads back to back, each padded to 8 bytes, followed by unwritten memory; or
            what writes them.
        needed: int32 [num_tensors], nonzero if the kernel does not know the form of a payload and has stored
            the tensor exactly; None if it knows all forms.
        keys: the ranges of the tensors as keys of ``quantize.range_keys``, if the kernel computed them.
    """

    sizes: torch.Tensor
    memory: torch.Tensor | Unwritten
    needed: torch.Tensor | None = None
    keys: torch.Tensor | None = None

    def written(self, most_nbytes: int) -> FusedList:
        """Return the list with its payloads written, if their capacity is at most ``most_nbytes``; else unchanged."""
        if isinstance(self.memory, torch.Tensor) or self.memory.capacity > most_nbytes:
            return self
        return self._replace(memory=self.memory.written(self.memory.capacity))

    def can_be_copied(self, most_nbytes: int) -> bool:
        """True if ``written(most_nbytes).tensors()`` is not None."""
        memory = self.memory
        is_written = isinstance(memory, torch.Tensor) or memory.capacity <= most_nbytes
        return is_written or cast("Unwritten", memory).state is not None

    def without_inputs(self) -> FusedList:
        """Return the list without references to the encoded tensors; it can then only be ``copied``."""
        if isinstance(self.memory, torch.Tensor):
            return self
        return self._replace(memory=self.memory._replace(xs=()))

    def tensors(self) -> tuple[torch.Tensor, ...] | None:
        """Return all memory that encoding wrote; None if not all of it can be copied."""
        memory = (self.memory,) if isinstance(self.memory, torch.Tensor) else self.memory.state
        if memory is None:
            return None
        return self.sizes, *(x for x in (self.needed, self.keys) if x is not None), *memory

    def copied(self, copies: Sequence[torch.Tensor], xs: Sequence[torch.Tensor]) -> FusedList:
        """Return this list in other memory, given copies of ``tensors``, as an encoding of ``xs``."""
        left = list(copies)
        sizes = left.pop(0)
        needed = None if self.needed is None else left.pop(0)
        keys = None if self.keys is None else left.pop(0)
        memory: torch.Tensor | Unwritten = left[0]
        if isinstance(self.memory, Unwritten):
            memory = self.memory._replace(xs=xs, state=tuple(left))
        return FusedList(sizes, memory, needed, keys)
