"""Click logs: the interface of their sources, and batches of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch

from tersor.errors import SpecError

NUM_DENSE: Final = 13
NUM_TABLES: Final = 26
Split = Literal["train", "test"]

KAGGLE_ROWS: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical features of Criteo Kaggle."""

TERABYTE_ROWS: Final = (
    9980333, 36084, 17217, 7378, 20134, 3, 7112, 1442, 61, 9758201, 1333352, 313829, 10, 2208, 11156,
    122, 4, 970, 14, 9994222, 7267859, 9946608, 415421, 12420, 101, 36,
)  # fmt: skip
"""Distinct values of the 26 categorical features of Criteo Terabyte, hashed into 10 million."""


@dataclass(frozen=True, slots=True)
class ClickBatch:
    """A batch of samples.

    Attributes:
        dense: float32 [samples, 13], scaled as model inputs.
        ids: int64 [samples, 26], the row of each table.
        labels: float32 [samples], 1 for a click.
    """

    dense: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device) -> ClickBatch:
        """Return the batch on a device."""
        return ClickBatch(self.dense.to(device), self.ids.to(device), self.labels.to(device))


class ClickSource(Protocol):
    """Samples with random access, so that runs can resume and ranks can read their own shares."""

    @property
    def name(self) -> str:
        """Name for logs and reports."""

    @property
    def num_rows(self) -> tuple[int, ...]:
        """Number of rows that each of the 26 tables needs."""

    def num_samples(self, split: Split) -> int:
        """Return the number of samples in a split."""

    def read(self, split: Split, start: int, count: int) -> ClickBatch:
        """Return samples ``start`` to ``start + count``, which must lie in the split."""


def check_range(source: ClickSource, split: Split, start: int, count: int) -> None:
    """Check that a split contains the given samples.

    Raises:
        SpecError: it does not; the message names the split and its size.
    """
    if split not in ("train", "test"):
        raise SpecError(f"a click log has the splits train and test, not {split!r}")
    num_samples = source.num_samples(split)
    if start < 0 or count < 0 or start + count > num_samples:
        last = start + count
        raise SpecError(f"the {split} split has {num_samples} samples, not {start} to {last}")
