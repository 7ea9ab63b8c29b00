"""An array that is read chunk by chunk, whatever file it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from tersor.chunks import Chunk, ChunkPlan
from tersor.codecs.codec import materialised
from tersor.errors import SpecError
from tersor.types import TensorInfo


class Source(ABC):
    """One named array of an input.

    Attributes:
        name: of the array in its file, or the file's own.
        info: shape and dtype.
        is_read_whole: whether no chunk can be read alone; it then minds the limit of memory itself.
    """

    is_read_whole = False

    def __init__(self, name: str, info: TensorInfo) -> None:
        self.name = name
        self.info = info

    @abstractmethod
    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """Return the values of one chunk, flat; raises ``CorruptDataError`` for a cut file."""

    def chunks(self, plan: ChunkPlan) -> Iterator[torch.Tensor]:
        """Return the values of all chunks in order, flat, holding one at a time."""
        return (self.chunk(chunk) for chunk in plan)


class TensorSource(Source):
    """A tensor in memory, or mapped there by whoever loaded it."""

    def __init__(self, name: str, x: torch.Tensor) -> None:
        super().__init__(name, TensorInfo.of(x))
        self._x = x

    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """See ``Source.chunk``; a view where the tensor is contiguous and nothing in it is lazy."""
        self._x = materialised(self._x)
        return self._x.view(-1)[chunk.start : chunk.stop]


def check_storable(info: TensorInfo, label: str) -> None:
    """Raise ``SpecError``, which begins with ``label``, if no ``.tsr`` file can hold the array."""
    try:
        info.check_storable()
    except SpecError as error:
        raise SpecError(f"{label}: {error}") from error
