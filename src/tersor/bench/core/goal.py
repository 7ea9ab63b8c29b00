"""Goals, and the result rows that they are judged from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from tersor.bench.core.rows import ResultRow, latest

RowT = TypeVar("RowT", bound=ResultRow)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and the value measured for it.

    Attributes:
        name: the goal in words.
        target: the smallest value that meets it, or the largest if ``at_most`` is set.
        measured: the deciding value; None if the rows do not contain it.
        detail: which rows decided.
        at_most: whether smaller values are better.
    """

    name: str
    target: float
    measured: float | None
    detail: str
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if it was not measured."""
        if self.measured is None:
            return None
        return self.measured <= self.target if self.at_most else self.measured >= self.target


_Place = tuple[str, bool, str, int, float | None, int, str, str]


class RowLookup:
    """Result rows, indexed by what was measured."""

    def __init__(self, rows: Sequence[ResultRow]) -> None:
        """Index the rows; if a measurement is repeated, even by another build, the last one counts."""
        self.rows = latest(rows)
        self._places = {self._place(row): row for row in self.rows}

    @staticmethod
    def _place(row: ResultRow) -> _Place:
        kind = (row.codec, row.peer, row.input, row.num_values)
        return (*kind, row.relative_bound, row.threads, row.device, row.git_commit)

    def ours(self, codec: str, threads: int = 1) -> list[ResultRow]:
        """Return the rows of one of our codecs."""
        return [r for r in self.rows if r.codec == codec and not r.peer and r.threads == threads]

    def counterpart(
        self, row: ResultRow, codec: str, *, peer: bool, threads: int = 1
    ) -> ResultRow | None:
        """Return another codec's row for the same input, size, bound, device and commit, if any."""
        place = (
            codec, peer, row.input, row.num_values, row.relative_bound, threads, row.device,
            row.git_commit,
        )  # fmt: skip
        return self._places.get(place)


def _input_and_bound(row: ResultRow) -> str:
    return row.input if row.relative_bound is None else f"{row.input} {row.relative_bound:g}"


def worst(
    name: str,
    target: float,
    values: Sequence[tuple[float, RowT]],
    where: Callable[[RowT], str] = _input_and_bound,
    *,
    at_most: bool = False,
) -> Goal:
    """Judge a goal by the worst of several values, each given with the row it comes from.

    The worst value is the smallest, or the largest if ``at_most`` is set. ``where`` describes its row.
    """
    if not values:
        return Goal(name, target, None, "no such rows", at_most)
    value, row = (max if at_most else min)(values, key=lambda pair: pair[0])
    middle = median(value for value, _ in values)
    detail = f"worst of {len(values)}: {where(row)}; median {middle:.3g}"
    return Goal(name, target, value, detail, at_most)
