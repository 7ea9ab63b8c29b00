"""Looked-up rows of embedding tables, and their division into the slices of an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import xxhash

from tersor.bench.core.inputs import CRITEO_KAGGLE_ROWS, MAX_TABLE_ROWS, embeddings
from tersor.errors import SpecError
from tersor.raw_bytes import as_bytes

SYNTHETIC: Final = "synthetic"
_SYNTHETIC_BATCH: Final = 2048
_MOST_NAMED: Final = 6
"""The most table numbers in a sentence; further ones are omitted."""


def named_tables(tables: Iterable[int]) -> str:
    """Return table numbers in words, shortened for a sentence.

    Example:
        >>> named_tables([3]), named_tables([4, 2]), named_tables(range(26))
        ('table 3', 'tables 2, 4', 'tables 0 to 25')
    """
    found = sorted(tables)
    if len(found) == 1:
        return f"table {found[0]}"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"tables {found[0]} to {found[-1]}"
    cut = ["..."] if len(found) > _MOST_NAMED else []
    return f"tables {', '.join([*map(str, found[:_MOST_NAMED]), *cut])}"


@dataclass(frozen=True, slots=True)
class LookUp:
    """The rows that one global batch looked up in one table.

    Attributes:
        iteration: iteration of the training, counted from 0.
        rows: float32 [batch, width], on the CPU.
    """

    iteration: int
    rows: torch.Tensor


class LookUps(ABC):
    """Dumped or synthetic look-ups of several tables, which are read one table at a time.

    Attributes:
        name: name in tables and rows.
        num_rows: rows of each table whose size is known.
    """

    name: str
    num_rows: Mapping[int, int]

    @property
    @abstractmethod
    def tables(self) -> Sequence[int]:
        """Numbers of the tables, in order."""

    @abstractmethod
    def read(self, table: int) -> list[LookUp]:
        """Return the look-ups of one table, at least one, in order of iteration.

        Raises:
            SpecError: the look-ups are not finite float32 rows of equal width.
            CorruptDataError: a file is damaged.
        """

    def digest(self) -> str:
        """Return an eight-digit hex hash of the data; this reads everything once."""
        found = xxhash.xxh3_64()
        for table in self.tables:
            for one in self.read(table):
                found.update(f"{table} {one.iteration} {tuple(one.rows.shape)}".encode())
                found.update(as_bytes(one.rows).numpy().data)
        return found.hexdigest()[:8]


class SyntheticLookUps(LookUps):
    """Look-ups in 26 tables with the cardinalities of Criteo Kaggle and Zipf-distributed ids.

    The weights are those of an untrained model.
    """

    def __init__(
        self,
        *,
        dim: int = 64,
        num_iterations: int = 4,
        batch: int = _SYNTHETIC_BATCH,
        num_tables: int = len(CRITEO_KAGGLE_ROWS),
    ) -> None:
        """Generate the look-ups in memory; a smaller batch is a prefix of one of 2048 samples."""
        if dim < 1:
            raise SpecError(f"rows have at least one value, not {dim}")
        every = len(CRITEO_KAGGLE_ROWS)
        made = embeddings(num_iterations * every * _SYNTHETIC_BATCH * dim * 4, dim)
        self.name = SYNTHETIC if dim == 64 else f"{SYNTHETIC}-dim{dim}"
        self.num_rows = {
            table: min(rows, MAX_TABLE_ROWS)
            for table, rows in enumerate(CRITEO_KAGGLE_ROWS[:num_tables])
        }
        self._found = {
            table: [
                LookUp(iteration, made.slices[iteration * every + table][:batch].contiguous())
                for iteration in range(num_iterations)
            ]
            for table in self.num_rows
        }

    @property
    def tables(self) -> Sequence[int]:
        """See ``LookUps.tables``."""
        return sorted(self._found)

    def read(self, table: int) -> list[LookUp]:
        """See ``LookUps.read``."""
        return self._found[table]


def checked_look_ups(table: int, found: Sequence[LookUp]) -> list[LookUp]:
    """Validate the look-ups of one table and return them in order of iteration.

    Raises:
        SpecError: widths differ, an iteration is repeated, or a look-up is empty or not finite.
    """
    ordered = sorted(found, key=lambda one: one.iteration)
    iterations = [one.iteration for one in ordered]
    if len(set(iterations)) != len(iterations):
        twice = next(k for k in iterations if iterations.count(k) > 1)
        raise SpecError(
            f"table {table} has two look-ups at iteration {twice}; keep one dump of each, with the "
            "iteration in its name"
        )
    widths = sorted({one.rows.shape[1] for one in ordered})
    if len(widths) > 1:
        raise SpecError(
            f"the look-ups of table {table} have rows of {' and '.join(map(str, widths))} values; "
            "dumps of one table have one width"
        )
    for one in ordered:
        if one.rows.numel() == 0:
            raise SpecError(f"the look-up of table {table} at iteration {one.iteration} is empty")
        if not bool(one.rows.isfinite().all()):
            raise SpecError(
                f"the look-up of table {table} at iteration {one.iteration} has values that are "
                "not finite; measure a model that trains"
            )
    return ordered


@dataclass(frozen=True, slots=True)
class Cut:
    """How a look-up becomes slices.

    Attributes:
        num_ranks: destinations; each receives its share of every batch.
        batch: samples of all ranks per step; None for all rows of a look-up.
        repeat: how often the rows are repeated first, which flatters encoders that find duplicates.
    """

    num_ranks: int = 4
    batch: int | None = None
    repeat: int = 1

    def __post_init__(self) -> None:
        """Reject counts below 1, and a batch with less than one row per rank."""
        if self.num_ranks < 1 or self.repeat < 1:
            raise SpecError(f"--ranks and --repeat begin at 1, not {self.num_ranks}, {self.repeat}")
        if self.batch is not None and self.batch < self.num_ranks:
            raise SpecError(
                f"a batch of {self.batch} is less than a row for each of --ranks {self.num_ranks}"
            )

    def first_batch(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the first batch of all ranks, which one step looks up."""
        return rows.repeat(self.repeat, 1)[: self.batch]

    def num_left_out(self, num_rows: int) -> int:
        """Return how many rows of a look-up, after repetition, do not fill a whole batch."""
        return 0 if self.batch is None else num_rows * self.repeat % self.batch

    def slices(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield contiguous slices, batch by batch, destination by destination.

        Trailing rows that do not fill a whole batch are omitted.

        Raises:
            SpecError: the look-up is smaller than a batch, or has less than one row per rank.
        """
        rows = rows.repeat(self.repeat, 1)
        batch = len(rows) if self.batch is None else self.batch
        if len(rows) < max(batch, self.num_ranks):
            raise SpecError(
                f"a look-up of {len(rows)} rows makes no batch of {max(batch, self.num_ranks)}; "
                "choose a smaller --batch or fewer --ranks"
            )
        for start in range(0, len(rows) - batch + 1, batch):
            yield from rows[start : start + batch].tensor_split(self.num_ranks)
