"""Plans and checks as blocks of a page; ``tersor.bench.page`` puts them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tersor.bench.core.row_checks import is_number
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import markdown_table
from tersor.bench.embeddings.planning.check import SUMMARY_COLUMNS, check, summary_cells
from tersor.bench.embeddings.planning.description import KEYS, Description
from tersor.bench.embeddings.planning.fit import fit_rows
from tersor.bench.embeddings.planning.model import Model
from tersor.bench.embeddings.planning.tables import (
    PLAN_COLUMNS,
    SWEEP_COLUMNS,
    plan_cells,
    sweep_cells,
)
from tersor.errors import SpecError
from tersor.planning import advise, parse_ranks, parse_sweep, turns

_OWN: Final = ("ranks", "codecs", "bound", "backward", "input")
"""What the block of a plan may say beside the keys of a cluster."""


def check_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return how well rows are predicted; ``hold_out`` says from what."""
    _refuse_others(options, ("hold_out",))
    found = check(rows, **options)
    return _block(
        SUMMARY_COLUMNS, summary_cells(found.points), [*found.constants(), found.sentence]
    )


def plan_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return the plan for ``ranks=N,...``; other options are those of ``tersor plan``."""
    _refuse_others(options, (*_OWN, *KEYS))
    model, ranks = _planned(rows, options)
    cells = [line for number in ranks for line in plan_cells(model, number)]
    return _block(PLAN_COLUMNS, cells, [advise(model, number).reason for number in ranks])


def sweep_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return the best by bandwidth, and where it changes; as ``plan_block``, with ``sweep``."""
    _refuse_others(options, ("sweep", *_OWN, *KEYS))
    model, ranks = _planned(rows, options)
    sweep = parse_sweep(options.get("sweep", "1gbit..400gbit"))
    advised = [advise(model.at_bandwidth(bits, n), n) for n in ranks for bits in sweep]
    changes = [turn.reason for n in ranks for turn in turns(model, n, sweep[0], sweep[-1])]
    return _block(SWEEP_COLUMNS, [sweep_cells(advice) for advice in advised], changes)


def _block(columns: Sequence[str], cells: list[list[str]], sentences: Sequence[str]) -> str:
    """Return a table with sentences below it."""
    table = markdown_table(columns, cells)
    return "\n".join([table, "", *(f"- {sentence}" for sentence in sentences)])


def _refuse_others(options: Mapping[str, str], known: Sequence[str]) -> None:
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise SpecError(f"this block takes {', '.join(known)}, not {unknown!r}")


def _planned(rows: Sequence[ResultRow], options: Mapping[str, str]) -> tuple[Model, list[int]]:
    said: dict[str, Any] = {name: _value(text) for name, text in options.items()}
    if "ranks" not in options:
        raise SpecError("a plan on a page needs ranks=N,...")
    ranks = parse_ranks(options["ranks"])
    codecs = options["codecs"].split(",") if "codecs" in options else None
    bound = said.get("bound")
    if bound is not None and not (is_number(bound) and 0 < bound < 1):
        raise SpecError(f"bound= is a number between 0 and 1, not {options['bound']!r}")
    fit = fit_rows(
        rows,
        codecs=codecs,
        model=options.get("input"),
        bound=bound,
        backward=options.get("backward", "float32"),
    )
    description = Description.parse({k: v for k, v in said.items() if k in KEYS})
    return fit.model(description), ranks


def _value(text: str) -> Any:
    """Return a number where it is one, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
