"""What one site tells the command line and pages about planning from its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tersor.bench.core.rows import ResultRow
from tersor.bench.planning.check import Check
from tersor.planning import Prediction, StepModel


class Fit(Protocol):
    """What rows say, ready to be joined with a description of a cluster."""

    @property
    def source(self) -> str:
        """One sentence on what was fitted to what."""
        ...

    def model(self, described: Mapping[str, Any]) -> StepModel:
        """Return the model of a cluster; a description takes precedence over what was fitted.

        Args:
            described: the values of a file or of options, with ``keys`` of the planner.

        Raises:
            SpecError: a key or a value that cannot be meant.
        """
        ...

    def notes(self, model: Any, ranks: Sequence[int]) -> list[str]:
        """Return what a reader must know of a plan, a sentence each."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Planner:
    """How steps of one site are planned.

    Attributes:
        name: of the site.
        plans: whether rows are of a kind that it plans from.
        keys: what a description may say; options of ``tersor plan`` have the same names.
        choices: keyword arguments of ``fit`` that choose among rows; likewise.
        others: further options that are for its rows alone.
        fit: fits rows.
        check: predicts rows from the rest, by what is held out.
        columns: what a table shows of a prediction beside times and gains of the whole step.
        cells: what stands under them.
        values: the same of a JSON line, with numbers.
        remark: a few words beside a prediction, or none.
    """

    name: str
    plans: Callable[[ResultRow], bool]
    keys: tuple[str, ...]
    choices: tuple[str, ...]
    others: tuple[str, ...] = ()
    fit: Callable[..., Fit]
    check: Callable[..., Check]
    columns: tuple[str, ...]
    cells: Callable[[Any, Prediction], list[str]]
    values: Callable[[Any, Prediction], dict[str, Any]]
    remark: Callable[[Any, Prediction], str]

    @property
    def options(self) -> frozenset[str]:
        """All that means something for its rows, and may mean nothing for others."""
        return frozenset((*self.keys, *self.choices, *self.others))
