"""The output of ``tersor plan``: tables, plots and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from tersor.cli.screen import Screen

if TYPE_CHECKING:
    from tersor.bench.planning.planner import Fit, Planner
    from tersor.planning import Advice, StepModel


def show_plan(
    screen: Screen,
    planner: Planner,
    fit: Fit,
    model: StepModel,
    ranks: Sequence[int],
    sweep_text: str | None,
    plot: str | None,
    output: str | None,
) -> None:
    """Show all predictions by ranks, or the best ones by bandwidth; write the requested files."""
    from tersor.bench.planning import tables
    from tersor.planning import advise, parse_sweep, turns

    evens = {number: tables.break_evens(model, number) for number in ranks}
    lines = [line for number in ranks for line in _lines(planner, model, number, evens[number])]
    written = list(lines)
    shown: list[RenderableType] = []
    values: dict[str, Any] = {"plan": lines, "source": fit.source}
    sweep = None if sweep_text is None else parse_sweep(sweep_text)
    if sweep is None:
        shown.append(tables.plan_table(planner, model, ranks))
        shown += [Text(advise(model, number).reason) for number in ranks]
    else:
        there = [(model.at_bandwidth(bits, n), n) for n in ranks for bits in sweep]
        swept = [advise(*place) for place in there]
        changes = [(n, turn) for n in ranks for turn in turns(model, n, sweep[0], sweep[-1])]
        shown.append(tables.sweep_table(swept))
        shown += [Text(f"{number:,} ranks: {turn.reason}") for number, turn in changes]
        values["sweep"] = [_sweep_values(advice) for advice in swept]
        written += [line for place in there for line in _lines(planner, *place, evens[place[1]])]
    if plot is not None:
        _draw(screen, model, ranks, sweep, plot)
    write_lines(output, written)
    for words in (fit.source, *fit.notes(model, ranks)):
        screen.say(words)
    screen.result(values, *shown)


def _lines(
    planner: Planner, model: StepModel, num_ranks: int, evens: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    from tersor.bench.planning.tables import plan_row
    from tersor.planning import advise

    found, advice = model.predictions(num_ranks), advise(model, num_ranks)
    return [plan_row(planner, model, one, advice, evens) for one in found]


def _draw(
    screen: Screen,
    model: StepModel,
    ranks: Sequence[int],
    sweep: Sequence[float] | None,
    plot: str,
) -> None:
    from tersor.bench.planning.tables import bandwidth_figure, ranks_figure

    if sweep is None:
        drawn = ranks_figure(model, ranks)
    else:
        drawn = bandwidth_figure(model, ranks[0], sweep)
    Path(plot).write_text(drawn + "\n", encoding="utf-8")
    if sweep is not None and len(ranks) > 1:
        screen.say(f"{plot} shows {ranks[0]:,} ranks, the first of --ranks")


def _sweep_values(advice: Advice) -> dict[str, Any]:
    return {
        "num_ranks": advice.best.num_ranks,
        "bits_per_s": advice.bits_per_s,
        "best": advice.best.name,
        "step_s": advice.best.step_s,
        "step_speedup": advice.step_speedup,
        "reason": advice.reason,
    }


def write_lines(path: str | None, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines to a file; do nothing if ``path`` is None."""
    if path is not None:
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        Path(path).write_text(text, encoding="utf-8")
