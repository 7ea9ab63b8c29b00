"""Page blocks of plans and checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tersor.bench.core.row_checks import is_number
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import markdown_table
from tersor.bench.planning.check import SUMMARY_COLUMNS, summary_cells
from tersor.bench.planning.planner import Planner
from tersor.bench.planning.tables import SWEEP_COLUMNS, plan_cells, plan_columns, sweep_cells
from tersor.errors import SpecError
from tersor.planning import StepModel, advise, parse_ranks, parse_sweep, turns

_CHOICES: Final = {"model": "input"}
"""Arguments of ``Planner.fit`` that have another name on a page and on the command line."""


def check_block(planner: Planner, rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return a summary of how well rows are predicted; the option ``hold_out`` is passed on."""
    _refuse_others(options, ("hold_out",))
    found = planner.check(rows, **options)
    return _block(
        SUMMARY_COLUMNS, summary_cells(found.points), [*found.constants(), found.sentence]
    )


def plan_block(planner: Planner, rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return the plan for ``ranks=N,...``; the other options are those of ``tersor plan``."""
    _refuse_others(options, _known(planner))
    model, ranks = _planned(planner, rows, options)
    cells = [line for number in ranks for line in plan_cells(planner, model, number)]
    reasons = [advise(model, number).reason for number in ranks]
    return _block(plan_columns(planner), cells, reasons)


def sweep_block(planner: Planner, rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return the best choice by bandwidth and where it changes; like ``plan_block``, with ``sweep``."""
    _refuse_others(options, ("sweep", *_known(planner)))
    model, ranks = _planned(planner, rows, options)
    sweep = parse_sweep(options.get("sweep", "1gbit..400gbit"))
    advised = [advise(model.at_bandwidth(bits, n), n) for n in ranks for bits in sweep]
    changes = [turn.reason for n in ranks for turn in turns(model, n, sweep[0], sweep[-1])]
    return _block(SWEEP_COLUMNS, [sweep_cells(advice) for advice in advised], changes)


def _known(planner: Planner) -> tuple[str, ...]:
    choices = (_CHOICES.get(name, name) for name in planner.choices)
    return ("ranks", *choices, *planner.keys)


def _block(columns: Sequence[str], cells: list[list[str]], sentences: Sequence[str]) -> str:
    """Return a Markdown table with sentences below it."""
    table = markdown_table(columns, cells)
    return "\n".join([table, "", *(f"- {sentence}" for sentence in sentences)])


def _refuse_others(options: Mapping[str, str], known: Sequence[str]) -> None:
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise SpecError(f"this block takes {', '.join(known)}, not {unknown!r}")


def _planned(
    planner: Planner, rows: Sequence[ResultRow], options: Mapping[str, str]
) -> tuple[StepModel, list[int]]:
    if "ranks" not in options:
        raise SpecError("a plan on a page needs ranks=N,...")
    ranks = parse_ranks(options["ranks"])
    chosen: dict[str, Any] = {
        name: options[said]
        for name in planner.choices
        if (said := _CHOICES.get(name, name)) in options
    }
    if "codecs" in chosen:
        chosen["codecs"] = chosen["codecs"].split(",")
    if "bound" in chosen:
        chosen["bound"] = bound = _value(chosen["bound"])
        if not (is_number(bound) and 0 < bound < 1):
            raise SpecError(f"bound= is a number between 0 and 1, not {options['bound']!r}")
    described = {key: _value(options[key]) for key in planner.keys if key in options}
    return planner.fit(rows, **chosen).model(described), ranks


def _value(text: str) -> Any:
    """Parse a JSON value such as a number, or return the text unchanged."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
