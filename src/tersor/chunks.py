"""How an array is cut into chunks that are encoded and decoded independently.

A chunk is a run of whole leading-dimension slices where these are small enough, so that
prediction and row de-duplication see the array's own shape; otherwise it is a flat run of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_CHUNK_VALUES: Final = 2**30
"""Most values one payload may hold: positions inside a payload are 32 bits wide."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Values ``[start, stop)`` of the flattened array, seen by the codec in ``shape``."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The cut of an array of ``shape`` into chunks of at most ``max_values`` values."""

    shape: tuple[int, ...]
    max_values: int = MAX_CHUNK_VALUES

    def _values_per_chunk(self) -> int:
        slice_values = math.prod(self.shape[1:])
        if not self.shape or slice_values == 0:
            return 1
        return self.max_values // slice_values * slice_values or self.max_values

    def __len__(self) -> int:
        """Number of chunks; an empty array has one empty chunk."""
        return max(1, -(-math.prod(self.shape) // self._values_per_chunk()))

    def __getitem__(self, index: int) -> Chunk:
        """Return chunk ``index``, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        numel = math.prod(self.shape)
        if len(self) == 1:
            return Chunk(0, numel, self.shape)
        size = self._values_per_chunk()
        start, stop = index * size, min(numel, (index + 1) * size)
        slice_values = math.prod(self.shape[1:])
        if size % slice_values:
            return Chunk(start, stop, (stop - start,))
        return Chunk(start, stop, ((stop - start) // slice_values, *self.shape[1:]))

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks in order."""
        return (self[index] for index in range(len(self)))
