"""Samples as stored in files: integers, with categories as values or ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.clicks import NUM_DENSE, NUM_TABLES, ClickBatch

MISSING: Final = -(2**31)
"""Value of an empty dense feature; an empty category is 0."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that are not yet scaled or numbered for a model.

    Attributes:
        labels: uint8 [samples], 1 for a click.
        dense: int32 [samples, 13], ``MISSING`` where empty.
        categories: uint32 [samples, 26]: values, or their ranks by decreasing frequency.
    """

    labels: npt.NDArray[np.uint8]
    dense: npt.NDArray[np.int32]
    categories: npt.NDArray[np.uint32]

    @classmethod
    def empty(cls, count: int) -> Samples:
        """Return ``count`` samples of zeros, to be filled."""
        return cls(
            np.zeros(count, np.uint8),
            np.zeros((count, NUM_DENSE), np.int32),
            np.zeros((count, NUM_TABLES), np.uint32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """Return the samples of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((part.labels, part.dense, part.categories) for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Samples:
        return Samples(self.labels[rows], self.dense[rows], self.categories[rows])


@dataclass(frozen=True, slots=True)
class Numbering:
    """Maps the ranks of values to rows of tables.

    Attributes:
        num_values: number of distinct values of each category.
        num_frequent: number of those that occur at least ``min_count`` times; they have the first ranks.
        min_count: if 1, a rank is its row; otherwise, less frequent values share row 0.
    """

    num_values: tuple[int, ...]
    num_frequent: tuple[int, ...]
    min_count: int

    def __post_init__(self) -> None:
        """Validate ``min_count``."""
        if self.min_count < 1:
            raise SpecError(f"min_count must be at least 1, not {self.min_count}")

    @property
    def num_rows(self) -> tuple[int, ...]:
        """Number of rows that each table needs."""
        shared = int(self.min_count > 1)
        return tuple(number + shared for number in self.num_frequent)

    def batch(self, samples: Samples) -> ClickBatch:
        """Convert ranked samples to model inputs; dense features become ``log(1 + max(x, 0))``.

        Raises:
            CorruptDataError: a rank is out of range.
        """
        ranks = samples.categories.astype(np.int64)
        if len(ranks) and (ranks.max(0) >= np.array(self.num_values)).any():
            raise CorruptDataError("the prepared samples are damaged; delete their folder")
        if self.min_count > 1:
            ranks = np.where(ranks < np.array(self.num_frequent), ranks + 1, 0)
        # MISSING is negative, so it becomes 0 too
        dense = np.log1p(np.maximum(samples.dense, 0).astype(np.float32))
        return ClickBatch(
            torch.from_numpy(dense),
            torch.from_numpy(ranks),
            torch.from_numpy(samples.labels.astype(np.float32)),
        )
