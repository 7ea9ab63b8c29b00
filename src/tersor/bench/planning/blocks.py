"""Plans and checks as blocks of a page; ``tersor.bench.page`` puts them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tersor.bench.planning.check import SUMMARY_COLUMNS, check, summary_cells
from tersor.bench.planning.fit import fit_rows
from tersor.bench.planning.tables import PLAN_COLUMNS, SWEEP_COLUMNS, plan_cells, sweep_cells
from tersor.bench.rows import ResultRow
from tersor.errors import SpecError
from tersor.planning import Description, Model, advise, parse_sweep, turns

Block = tuple[Sequence[str], list[list[str]], list[str]]
"""Columns, cells, and sentences that stand below."""


def check_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> Block:
    """Return how well rows are predicted; ``hold_out`` says from what."""
    found = check(rows, **options)
    return SUMMARY_COLUMNS, summary_cells(found.points), [*found.constants(), found.sentence]


def plan_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> Block:
    """Return the plan for ``ranks=N,...``; other options are those of ``tersor plan``."""
    model, ranks, _ = _planned(rows, options)
    cells = [line for number in ranks for line in plan_cells(model, number)]
    return PLAN_COLUMNS, cells, [advise(model, number).reason for number in ranks]


def sweep_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> Block:
    """Return the best by bandwidth, and where it changes; as ``plan_block``, with ``sweep``."""
    model, ranks, sweep = _planned(rows, options)
    advised = [advise(model.at_bandwidth(bits, n), n) for n in ranks for bits in sweep]
    changes = [turn.reason for n in ranks for turn in turns(model, n, sweep[0], sweep[-1])]
    return SWEEP_COLUMNS, [sweep_cells(advice) for advice in advised], changes


def _planned(
    rows: Sequence[ResultRow], options: Mapping[str, str]
) -> tuple[Model, list[int], tuple[float, ...]]:
    said: dict[str, Any] = {name: _value(text) for name, text in options.items()}
    ranks = [int(word) for word in options.get("ranks", "").split(",") if word.strip().isdigit()]
    if not ranks:
        raise SpecError("a plan on a page needs ranks=N,...")
    sweep = parse_sweep(options.get("sweep", "1gbit..400gbit"))
    codecs = options["codecs"].split(",") if "codecs" in options else None
    fit = fit_rows(
        rows, codecs=codecs, bound=said.get("bound"), backward=options.get("backward", "float32")
    )
    own = ("ranks", "sweep", "codecs", "bound", "backward")
    description = Description.parse({k: v for k, v in said.items() if k not in own})
    return fit.model(description), ranks, sweep


def _value(text: str) -> Any:
    """Return a number where it is one, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
