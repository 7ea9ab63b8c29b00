"""Working memory of one call, allocated in one piece and cut into tensors.

An allocation costs a host about 4 us, and a call on a list of tensors needs dozens of buffers; one of
these views costs less than 1 us.
"""

from __future__ import annotations

from collections.abc import Mapping
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
            is cut into, and the name of each piece; empty for padding.
    """

    nbytes: int
    parts: tuple[tuple[torch.dtype, int, int, tuple[int, ...], tuple[str, ...]], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, tuple[torch.dtype, int]]) -> Layout:
        """Lay out tensors of these names, dtypes and numbers of values."""
        parts, start = [], 0
        for dtype in dict.fromkeys(dtype for dtype, _ in tensors.values()):
            lengths: list[int] = []
            names: list[str] = []
            for name, (other, length) in tensors.items():
                if other == dtype:
                    lengths += [length, -length % (_ALIGNMENT // dtype.itemsize)]
                    names += [name, ""]
            stop = start + sum(lengths) * dtype.itemsize
            parts.append((dtype, start, stop, tuple(lengths), tuple(names)))
            start = stop
        return cls(start, tuple(parts))

    def carve(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Allocate the memory; return the tensors by name, with arbitrary contents.

        Each of them keeps all of the memory. One kernel module may return them to another, as the
        coder of streams does, but what the codec's call on a list returns must not be one of them.
        """
        memory = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        found: dict[str, torch.Tensor] = {}
        for dtype, start, stop, lengths, names in self.parts:
            found.update(
                zip(names, memory[start:stop].view(dtype).split_with_sizes(lengths), strict=True)
            )
        found.pop("", None)
        return found
