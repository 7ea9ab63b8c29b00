"""Division of an array into chunks that are encoded and decoded independently.

A chunk is a run of whole slices along the leading dimension if these are small enough, so that
prediction and row de-duplication see the array's shape. Otherwise it is a flat run of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tersor.division import ceil_div

MAX_CHUNK_VALUES: Final = 2**30
"""Most values in one payload: positions inside a payload are 32 bits wide."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Values ``[start, stop)`` of the flattened array, passed to the codec in ``shape``."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The division of an array of ``shape`` into chunks of at most ``max_values`` values."""

    shape: tuple[int, ...]
    max_values: int = MAX_CHUNK_VALUES

    @property
    def chunk_size(self) -> int:
        """Values in every chunk but the last."""
        numel = math.prod(self.shape)
        slice_values = math.prod(self.shape[1:])
        if numel <= self.max_values or slice_values == 0:
            return max(1, numel)
        return self.max_values // slice_values * slice_values or self.max_values

    def __len__(self) -> int:
        """Return the number of chunks; an empty array has one empty chunk."""
        return max(1, ceil_div(math.prod(self.shape), self.chunk_size))

    def __getitem__(self, index: int) -> Chunk:
        """Return chunk ``index``, counted from 0."""
        numel, size = math.prod(self.shape), self.chunk_size
        if not 0 <= index < max(1, ceil_div(numel, size)):
            raise IndexError(index)
        if numel <= size:
            return Chunk(0, numel, self.shape)
        start, stop = index * size, min(numel, (index + 1) * size)
        slice_values = math.prod(self.shape[1:])
        if size % slice_values:
            return Chunk(start, stop, (stop - start,))
        return Chunk(start, stop, ((stop - start) // slice_values, *self.shape[1:]))

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks in order."""
        return (self[index] for index in range(len(self)))
