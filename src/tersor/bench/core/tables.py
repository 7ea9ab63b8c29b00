"""Shared helpers for the tables of all sites, in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.table import Table

from tersor.bench.core.blocks import TITLES, shown
from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.errors import SpecError

Cells = list[str]
_FILTERS: Final = ("input", "codec", "bound", "mib", "link", "batch")
GOAL_COLUMNS: Final = ("goal", "target", "measured", "", "decided by")


def chosen(rows: Iterable[ResultRow], options: Mapping[str, str]) -> list[ResultRow]:
    """Return the rows whose traits match the options of a page.

    Args:
        rows: rows to choose from.
        options: comma-separated accepted values by trait.

    Raises:
        SpecError: an option is not a trait by which rows can be selected.
    """
    unknown = next((name for name in options if name not in _FILTERS), None)
    if unknown is not None:
        raise SpecError(f"rows are chosen by {', '.join(_FILTERS)}, not by {unknown!r}")
    asked = {name: values.split(",") for name, values in options.items()}
    return [
        row
        for row in rows
        if all(row.traits().get(name) in values for name, values in asked.items())
    ]


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def terminal_table(
    title: str,
    columns: Sequence[str],
    lines: Iterable[Sequence[str]],
    *,
    words: Iterable[str] = (),
    section: slice = slice(0),
) -> Table:
    """Return a table for a terminal.

    Args:
        title: title above the table.
        columns: column names.
        lines: the rows, one cell per column.
        words: columns of words, which are left-aligned; the others are right-aligned.
        section: cells whose change starts a new section, separated by a line.
    """
    table, left = Table(title=title), set(words)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    previous = None
    for cells in lines:
        if previous not in (None, cells[section]):
            table.add_section()
        previous = cells[section]
        table.add_row(*cells)
    return table


def figure_names(rows: Iterable[ResultRow]) -> list[str]:
    """Return the figures of quality and memory that any row has, in the order of ``TITLES``."""
    found = {name for row in rows for name in row.figures()}
    return [name for name in TITLES if name in found]


def figure_cells(row: ResultRow, names: Iterable[str]) -> Cells:
    """Return a row's cells for the named figures; empty for figures that it does not have."""
    figures = row.figures()
    return [shown(name, figures[name]) if name in figures else "" for name in names]


def goal_cells(goal: Goal, verdicts: Mapping[bool | None, str], digits: int = 4) -> Cells:
    """Return a goal's cells for ``GOAL_COLUMNS``; ``verdicts`` maps ``Goal.met`` to words."""
    measured = "" if goal.measured is None else f"{goal.measured:.{digits}g}"
    target = f"at most {goal.target:g}" if goal.at_most else f"{goal.target:g}"
    return [goal.name, target, measured, verdicts[goal.met], goal.detail]


def goals_table(goals: Iterable[Goal]) -> Table:
    """Return a table of all goals with the measured values and whether they meet the target."""
    verdicts = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not measured"}
    lines = (goal_cells(goal, verdicts, digits=3) for goal in goals)
    return terminal_table("Goals", GOAL_COLUMNS, lines, words=("goal", "", "decided by"))
