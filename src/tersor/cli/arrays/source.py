"""Arrays that are read chunk by chunk, independent of their file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tersor.chunks import Chunk, ChunkPlan
from tersor.codecs.arguments import materialised
from tersor.container import Reader
from tersor.errors import SpecError
from tersor.types import TensorInfo

Advance = Callable[[int], None]


class Source(ABC):
    """One named array of an input.

    Attributes:
        name: of the array in its file, or of the file.
        info: shape and dtype.
        is_read_whole: True if chunks cannot be read separately; the source then checks the memory limit.
    """

    is_read_whole = False

    def __init__(self, name: str, info: TensorInfo) -> None:
        self.name = name
        self.info = info

    @abstractmethod
    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """Return the values of one chunk, flat; raise ``CorruptDataError`` if the file is truncated."""

    def chunks(self, plan: ChunkPlan) -> Iterator[torch.Tensor]:
        """Iterate over the values of all chunks in order, flat, holding one at a time."""
        return (self.chunk(chunk) for chunk in plan)


class TsrSource(Source):
    """An array of a ``.tsr`` file, decoded chunk by chunk and converted to ``dtype`` if given."""

    def __init__(self, reader: Reader, name: str, dtype: torch.dtype | None = None) -> None:
        self.entry = reader.arrays[name]
        info = self.entry.info
        super().__init__(name, info if dtype is None else TensorInfo(info.shape, dtype))
        self._reader = reader

    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """See ``Source.chunk``; ``chunk`` must be one of ``entry.plan``."""
        index = chunk.start // self.entry.plan.chunk_size
        return self._reader.read_chunk(self.name, index).reshape(-1).to(self.info.dtype)


class TensorSource(Source):
    """A tensor in memory, possibly memory-mapped by its loader."""

    def __init__(self, name: str, x: torch.Tensor) -> None:
        super().__init__(name, TensorInfo.of(x))
        self._x = x

    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """See ``Source.chunk``; a view if the tensor is contiguous, without lazy conjugation or negation."""
        self._x = materialised(self._x)
        return self._x.view(-1)[chunk.start : chunk.stop]


def watched(chunks: Iterator[torch.Tensor], advance: Advance) -> Iterator[torch.Tensor]:
    """Yield chunks, and call ``advance`` with the bytes of each after it is consumed."""
    for x in chunks:
        yield x
        advance(x.nbytes)


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Prefix the message of every ``SpecError`` in the block with ``label``."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{label}: {error}") from error
