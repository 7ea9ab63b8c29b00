"""DLRM with dot interaction: tables are distributed over ranks, the rest is replicated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import nn

from tersor.errors import SpecError
from tersor.sites.embeddings import Exchange
from tersor.workloads.data.clicks import KAGGLE_ROWS, NUM_DENSE, TERABYTE_ROWS, ClickBatch


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """The sizes of a model.

    Attributes:
        num_rows: rows of each table.
        dim: values per row, and outputs of the bottom network.
        bottom: widths of the hidden layers of the bottom network.
        top: widths of the hidden layers of the top network.
    """

    num_rows: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    def __post_init__(self) -> None:
        """Validate the sizes."""
        if not self.num_rows or min((*self.num_rows, self.dim, *self.bottom, *self.top)) < 1:
            raise SpecError("a DLRM needs tables, and layers of at least one value")


@dataclass(frozen=True, slots=True)
class Preset:
    """A published configuration."""

    shape: DlrmShape
    batch: int
    learning_rate: float


PRESETS: Final[Mapping[str, Preset]] = {
    "kaggle": Preset(DlrmShape(KAGGLE_ROWS, 32, (512, 256, 64), (512, 256)), 128, 0.1),
    "terabyte": Preset(DlrmShape(TERABYTE_ROWS, 64, (512, 256), (512, 512, 256)), 2048, 0.1),
    "small": Preset(DlrmShape(KAGGLE_ROWS, 16, (64, 32), (64, 32)), 1024, 0.1),
}


def place_tables(num_rows: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Return the rank of each table, with about equal numbers of tables and rows per rank.

    The largest tables are placed first, each on the rank with the fewest rows among those with the
    fewest tables. Balance matters because the exchange takes as long as the rank that sends most.
    """
    owners = [0] * len(num_rows)
    rows, tables = [0] * world_size, [0] * world_size
    for table in sorted(range(len(num_rows)), key=lambda k: -num_rows[k]):
        rank = min(range(world_size), key=lambda r: (tables[r], rows[r], r))
        owners[table] = rank
        rows[rank] += num_rows[table]
        tables[rank] += 1
    return tuple(owners)


def _network(widths: Sequence[int], last_is_linear: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(pairwise(widths)):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=math.sqrt(2.0 / (inputs + outputs)))
        nn.init.normal_(layer.bias, std=math.sqrt(1.0 / outputs))
        layers.append(layer)
        if k < len(widths) - 2 or not last_is_linear:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """The part of a model that one rank holds: its tables, and both dense networks.

    The weights of a table depend only on ``seed`` and its number, not on its rank, so any number of ranks
    trains the same model.
    """

    _pairs: torch.Tensor

    def __init__(self, shape: DlrmShape, tables: Sequence[int], seed: int = 0) -> None:
        """Create the tables with the numbers ``tables``, and the dense networks."""
        super().__init__()
        self.shape, self.table_numbers = shape, list(tables)
        self.tables = nn.ModuleDict(
            {str(table): _table(shape.num_rows[table], shape.dim, seed, table) for table in tables}
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            num_vectors = len(shape.num_rows) + 1
            num_pairs = num_vectors * (num_vectors - 1) // 2
            self.bottom = _network((NUM_DENSE, *shape.bottom, shape.dim), last_is_linear=False)
            self.top = _network((shape.dim + num_pairs, *shape.top, 1), last_is_linear=True)
        rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("_pairs", rows * num_vectors + columns, persistent=False)

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are replicated on every rank."""
        return [*self.bottom.parameters(), *self.top.parameters()]

    def look_up(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Return the rows of this rank's tables, [samples, dim] each, for ids [samples, tables]."""
        return [self.tables[str(table)](ids[:, table]) for table in self.table_numbers]

    def forward(self, batch: ClickBatch, exchange: Exchange, own: slice) -> torch.Tensor:
        """Return the logits of this rank's samples.

        Args:
            batch: the samples of all ranks.
            exchange: sends looked-up rows to the ranks of their samples.
            own: the samples of this rank.
        """
        pending = exchange.start(self.look_up(batch.ids))
        dense = self.bottom(batch.dense[own])
        vectors = torch.stack([dense, *pending.wait()], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = products.index_select(1, self._pairs)
        logits: torch.Tensor = self.top(torch.cat([dense, pairs], 1))
        return logits.squeeze(1)


def _table(num_rows: int, dim: int, seed: int, table: int) -> nn.Embedding:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + table)
    limit = math.sqrt(1.0 / num_rows)
    weight = torch.empty(num_rows, dim).uniform_(-limit, limit, generator=generator)
    embedding: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
    return embedding
