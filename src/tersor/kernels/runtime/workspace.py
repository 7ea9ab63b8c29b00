"""Working memory of one call, allocated in one piece and cut into tensors.

An allocation costs a host about 4 us, and a call on a list of tensors needs dozens of buffers; one of
these views costs less than 1 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

_ALIGNMENT: Final = 256
"""Every tensor starts at a multiple of so many bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where tensors lie in one memory; those of a dtype lie together.

    Attributes:
        nbytes: of the memory.
        parts: per dtype its first byte and the byte behind its last, the lengths of the pieces it
            is cut into, and at which place of the list each piece stands; -1 for padding.
        num_tensors: how many there are.
    """

    nbytes: int
    parts: tuple[tuple[torch.dtype, int, int, tuple[int, ...], tuple[int, ...]], ...]
    num_tensors: int

    @classmethod
    def of(cls, tensors: Sequence[tuple[torch.dtype, int]]) -> Layout:
        """Lay out tensors of these dtypes and numbers of values."""
        parts, start = [], 0
        for dtype in dict.fromkeys(dtype for dtype, _ in tensors):
            lengths: list[int] = []
            places: list[int] = []
            for place, (other, length) in enumerate(tensors):
                if other == dtype:
                    lengths += [length, -length % (_ALIGNMENT // dtype.itemsize)]
                    places += [place, -1]
            stop = start + sum(lengths) * dtype.itemsize
            parts.append((dtype, start, stop, tuple(lengths), tuple(places)))
            start = stop
        return cls(start, tuple(parts), len(tensors))

    def carve(self, device: torch.device) -> list[torch.Tensor]:
        """Allocate the memory; return the tensors in order, with arbitrary contents.

        Each of them keeps all of the memory. One kernel module may return them to another, as the
        coder of streams does, but what the codec's call on a list returns must not be one of them.
        """
        memory = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        found = [memory] * self.num_tensors
        for dtype, start, stop, lengths, places in self.parts:
            pieces = memory[start:stop].view(dtype).split_with_sizes(lengths)
            for place, piece in zip(places, pieces, strict=True):
                if place >= 0:
                    found[place] = piece
        return found
