"""Synthetic click logs that a model can learn, so effects on accuracy show without a download.

Ids follow a Zipf law over the published cardinalities. Clicks are drawn from a planted model: an effect
per id, which fades from the most common id to the rarest, products of hidden factors of neighbouring
tables, and a nonlinear function of the dense features. One sample in four is clicked. The true
probabilities are known, and with them the best AUC of any model.

Every number is a hash of (seed, split, sample, column), so any sample can be generated independently,
and every machine generates the same log, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from tersor.errors import SpecError
from tersor.workloads.data.clicks import KAGGLE_ROWS, NUM_DENSE, ClickBatch, Split, check_range
from tersor.workloads.data.hashes import hashes
from tersor.workloads.data.planted import CHANCE_NBITS, F32, I64, normal, planted_model
from tersor.workloads.metrics import auc

_BLOCK: Final = 2048
"""Samples generated at once; their intermediate results fit in the cache of a core."""
_STREAMS: Final = {"train": 0, "test": 1}


@dataclass(frozen=True, slots=True)
class SyntheticClicks:
    """A synthetic click log.

    Attributes:
        num_rows: rows of each table; by default the 26 of Criteo Kaggle.
        num_train: training samples.
        num_test: test samples.
        seed: determines the planted model and the samples.
    """

    num_rows: tuple[int, ...] = KAGGLE_ROWS
    num_train: int = 1 << 20
    num_test: int = 1 << 16
    seed: int = 0

    def __post_init__(self) -> None:
        """Require at least one table and samples in both splits."""
        if not self.num_rows or min(self.num_rows) < 1:
            raise SpecError(f"every table needs at least one row, not {self.num_rows}")
        if self.num_train < 1 or self.num_test < 1:
            raise SpecError("a click log needs training and test samples")

    @classmethod
    def scaled(cls, max_rows: int, **options: int) -> SyntheticClicks:
        """Return a log whose tables have at most ``max_rows`` rows."""
        if max_rows < 1:
            raise SpecError(f"max_rows must be at least 1, not {max_rows}")
        return cls(num_rows=tuple(min(rows, max_rows) for rows in KAGGLE_ROWS), **options)

    @property
    def name(self) -> str:
        """See ``ClickSource.name``."""
        return f"synthetic clicks, seed {self.seed}"

    def num_samples(self, split: Split) -> int:
        """See ``ClickSource.num_samples``."""
        return self.num_train if split == "train" else self.num_test

    def read(self, split: Split, start: int, count: int) -> ClickBatch:
        """See ``ClickSource.read``."""
        dense, ids, chances, draws = self._made(split, start, count)
        labels = (draws < chances).astype(np.float32)
        return ClickBatch(*(torch.from_numpy(array) for array in (dense, ids, labels)))

    def probabilities(self, split: Split, start: int, count: int) -> torch.Tensor:
        """Return the true probability of a click for each sample, float64."""
        _, _, chances, _ = self._made(split, start, count)
        return torch.from_numpy(chances / float(1 << CHANCE_NBITS))

    def best_auc(self, num_samples: int | None = None) -> float:
        """Return the expected AUC of the true probabilities on (the start of) the test split."""
        true = self.probabilities("test", 0, min(num_samples or self.num_test, self.num_test))
        return auc(true, true)

    def _made(self, split: Split, start: int, count: int) -> tuple[F32, I64, I64, I64]:
        """Return dense features, ids, click probabilities, and the draws that determine the labels."""
        check_range(self, split, start, count)
        model = planted_model(self.num_rows, NUM_DENSE, self.seed)
        dense = np.empty((count, NUM_DENSE), np.float32)
        ids = np.empty((count, len(self.num_rows)), np.int64)
        chances, draws = np.empty(count, np.int64), np.empty(count, np.int64)
        width = 1 + NUM_DENSE + len(self.num_rows)
        for at in range(0, count, _BLOCK):
            size = min(_BLOCK, count - at)
            part = slice(at, at + size)
            first = (start + at) * width
            bits = hashes(self.seed, _STREAMS[split], first, size * width).reshape(size, width)
            draws[part] = bits[:, 0] >> np.uint64(64 - CHANCE_NBITS)
            dense[part] = normal(bits[:, 1 : 1 + NUM_DENSE])
            ids[part] = model.ids(bits[:, 1 + NUM_DENSE :])
            chances[part] = model.chances(dense[part], ids[part])
        return dense, ids, chances, draws
