"""The interface through which the command line and pages plan from one site's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tersor.bench.core.rows import ResultRow
from tersor.bench.planning.check import Check
from tersor.planning import Prediction, StepModel


class Fit(Protocol):
    """Costs fitted to rows, to be combined with a description of a cluster."""

    @property
    def source(self) -> str:
        """A sentence on what was fitted to which rows."""
        ...

    def model(self, described: Mapping[str, Any]) -> StepModel:
        """Return the model of a cluster; described values take precedence over fitted ones.

        Args:
            described: values of a file or of options, with ``keys`` of the planner.

        Raises:
            SpecError: a key is unknown, or a value is invalid.
        """
        ...

    def notes(self, model: Any, ranks: Sequence[int]) -> list[str]:
        """Return caveats about a plan, one sentence each."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Planner:
    """How steps of one site are planned.

    Attributes:
        name: name of the site.
        plans: returns whether it can plan from a row.
        keys: keys of a description; options of ``tersor plan`` have the same names.
        choices: keyword arguments of ``fit`` that select rows, which are options likewise.
        others: further options that apply only to its rows.
        fit: fits rows.
        check: predicts held-out rows from the others.
        columns: table columns of a prediction, in addition to times and gains of the whole step.
        cells: returns the cells of these columns.
        values: returns the corresponding numbers for a JSON line.
        remark: returns a short remark on a prediction, which may be empty.
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
        """All options that apply to its rows; they may not apply to rows of other sites."""
        return frozenset((*self.keys, *self.choices, *self.others))
