"""Working memory of one call, allocated in one piece and cut into tensors.

An allocation costs the host about 4 us, and a call on a list of tensors needs dozens of buffers. A view
into one allocation costs less than 1 us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from tersor.kernels.runtime.recording import working_memory

_ALIGNMENT: Final = 256
"""Every tensor starts at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of several tensors in one allocation, grouped by dtype.

    Attributes:
        nbytes: size of the allocation.
        parts: per dtype, its first byte, the end of its bytes, the lengths of the pieces it is cut
            into, and the name of each piece, which is empty for padding.
    """

    nbytes: int
    parts: tuple[tuple[torch.dtype, int, int, tuple[int, ...], tuple[str, ...]], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, tuple[torch.dtype, int]]) -> Layout:
        """Lay out tensors given by name as dtype and number of values."""
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
        """Allocate the memory; return the tensors by name, uninitialised.

        Each tensor keeps the whole allocation alive. One kernel module may return them to another, as
        the stream coder does, but a codec's call on a list must not return one of them.
        """
        memory = working_memory(self.nbytes, device)
        found: dict[str, torch.Tensor] = {}
        for dtype, start, stop, lengths, names in self.parts:
            found.update(
                zip(names, memory[start:stop].view(dtype).split_with_sizes(lengths), strict=True)
            )
        found.pop("", None)
        return found
