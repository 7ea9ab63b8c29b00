"""Small look-ups with known properties."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.bench.embeddings.lookups.inputs import LookUp, LookUps, checked_look_ups


class MadeLookUps(LookUps):
    """Tables of 8 values per row: table 0 repeats 4 rows, table 1 repeats none."""

    name = "made"

    def __init__(self, num_iterations: int = 2, batch: int = 64, num_rows=None) -> None:
        self.num_rows = {0: 4, 1: 10**6} if num_rows is None else num_rows
        generator = torch.Generator().manual_seed(0)
        hot = torch.randn(4, 8, generator=generator)
        self._found = {
            0: [
                LookUp(10 * k, hot[torch.randint(4, (batch,), generator=generator)])
                for k in range(num_iterations)
            ],
            1: [
                LookUp(10 * k, torch.randn(batch, 8, generator=generator))
                for k in range(num_iterations)
            ],
        }

    @property
    def tables(self) -> Sequence[int]:
        return sorted(self._found)

    def read(self, table: int) -> list[LookUp]:
        return checked_look_ups(table, self._found[table])
