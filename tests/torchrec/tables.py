"""Tables of small models, and samples that look rows of them up; needs no torchrec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Table:
    """One table: on one rank, on several column-wise, or with no owners on all of them row-wise.

    Twice the same owner stands for the ranks of one machine, table-row-wise.
    """

    number: int
    width: int
    owners: tuple[int, ...]
    num_features: int = 1
    num_rows: int = 40

    @property
    def name(self) -> str:
        return f"table{self.number}"

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"feature{self.number}_{k}" for k in range(self.num_features))


@dataclass(frozen=True)
class Samples:
    """Rows to look up, feature by feature and sample by sample."""

    keys: tuple[str, ...]
    values: torch.Tensor
    lengths: torch.Tensor


def samples_of(
    tables: Sequence[Table], rank: int, batch: int, longest: int = 3, step: int = 0
) -> Samples:
    """Return the samples of a rank: low row numbers often, high ones seldom, as real ones are."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    keys, values, lengths = [], [], []
    for table in tables:
        for feature in table.features:
            keys.append(feature)
            each = torch.randint(0, longest + 1, (batch,), generator=generator)
            drawn = torch.rand(int(each.sum()), generator=generator) ** 3 * table.num_rows
            values.append(drawn.long())
            lengths.append(each)
    return Samples(tuple(keys), torch.cat(values), torch.cat(lengths))
