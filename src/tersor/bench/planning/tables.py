"""Render a plan as tables, figures and JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table

from tersor.bench.core.tables import terminal_table
from tersor.bench.planning.planner import Planner
from tersor.bench.plots import line_chart
from tersor.planning import (
    Advice,
    Prediction,
    StepModel,
    advise,
    agreement_words,
    bandwidth_words,
)

_FEW: Final = 6
"""The most lines in a figure that all get their own colour."""
SWEEP_COLUMNS: Final = ("bandwidth", "ranks", "best", "step ms", "float32 ms", "x float32", "why")


def plan_columns(planner: Planner) -> tuple[str, ...]:
    """Return the table columns, which ``docs/plan.md`` explains."""
    gains = ("x float32", "step ms", "x float32", "pays up to", "")
    return ("ranks", "exchange", *planner.columns, *gains)


def break_evens(model: StepModel, num_ranks: int) -> dict[str, float | None]:
    """Return ``break_even`` of every method but the baseline; the same for all bandwidths of the model's cluster."""
    names = [name for name in model.methods if name != model.baseline]
    return {name: model.break_even(name, num_ranks) for name in names}


def plan_row(
    planner: Planner,
    model: StepModel,
    found: Prediction,
    advice: Advice,
    evens: Mapping[str, float | None],
) -> dict[str, Any]:
    """Return one prediction as a JSON-ready line, in seconds, bits per second and bytes.

    ``evens`` are the ``break_evens`` for its number of ranks.
    """
    base, is_best = advice.baseline, found.name == advice.best.name
    return {
        "kind": "plan",
        "site": planner.name,
        "codec": found.name,
        "num_ranks": found.num_ranks,
        "cluster": asdict(model.cluster),
        **planner.values(model, found),
        "exchange_s": found.transfers_s,
        "compute_s": found.compute_s,
        "hidden_s": found.hidden_s,
        "step_s": found.step_s,
        "exchange_speedup": base.transfers_s / found.transfers_s,
        "step_speedup": base.step_s / found.step_s,
        "break_even_bits_per_s": evens.get(found.name),
        "is_extrapolated": found.is_extrapolated,
        "keeps_bound": model.methods[found.name],
        "is_best": is_best,
        "reason": advice.reason if is_best else None,
    }


def break_even_words(bits_per_s: float | None) -> str:
    """Describe a break-even bandwidth in words.

    Example:
        >>> break_even_words(None), break_even_words(0.0), break_even_words(2.5e10)
        ('always pays', 'never pays', '25gbit')
    """
    if bits_per_s is None:
        return "always pays"
    return "never pays" if bits_per_s == 0 else bandwidth_words(bits_per_s)


def plan_table(planner: Planner, model: StepModel, ranks: Sequence[int]) -> Table:
    """Return a table of every exchange method at every rank count; ~ marks extrapolated ratios."""
    link = bandwidth_words(model.cluster.inter_bits_per_s)
    found = [one for number in ranks for one in model.predictions(number)]
    guessed = (
        "; ~ ratio beyond the measured slices" if any(x.is_extrapolated for x in found) else ""
    )
    title = f"Predicted times at {link} between nodes{guessed}"
    lines = [cells for number in ranks for cells in plan_cells(planner, model, number)]
    words = ("exchange", "")
    return terminal_table(title, plan_columns(planner), lines, words=words, section=slice(1))


def plan_cells(planner: Planner, model: StepModel, num_ranks: int) -> list[list[str]]:
    """Return the cells of ``plan_columns``, one line per exchange method."""
    advice, evens = advise(model, num_ranks), break_evens(model, num_ranks)
    return [_cells(planner, model, found, advice, evens) for found in model.predictions(num_ranks)]


def _cells(
    planner: Planner,
    model: StepModel,
    found: Prediction,
    advice: Advice,
    evens: Mapping[str, float | None],
) -> list[str]:
    base, is_base = advice.baseline, found.name == model.baseline
    remarks = ("best" if found.name == advice.best.name else "", planner.remark(model, found))
    return [
        f"{found.num_ranks:,}",
        found.name,
        *planner.cells(model, found),
        "" if is_base else f"{base.transfers_s / found.transfers_s:.2f}",
        milliseconds(found.step_s),
        "" if is_base else f"{base.step_s / found.step_s:.2f}",
        "" if is_base else break_even_words(evens[found.name]),
        ", ".join(filter(None, remarks)),
    ]


def milliseconds(seconds: float) -> str:
    """Format a time in milliseconds, without the unit.

    Example:
        >>> milliseconds(1.5), milliseconds(0.0012345)
        ('1,500.0', '1.23')
    """
    return f"{seconds * 1e3:,.1f}" if seconds >= 0.01 else f"{seconds * 1e3:.3g}"


def sweep_table(advised: Iterable[Advice]) -> Table:
    """Return a table of the best exchange method at every bandwidth."""
    title, lines = "The best exchange by bandwidth", map(sweep_cells, advised)
    return terminal_table(title, SWEEP_COLUMNS, lines, words=("best", "why"), section=slice(1, 2))


def sweep_cells(advice: Advice) -> list[str]:
    """Return the cells of ``SWEEP_COLUMNS``."""
    return [
        bandwidth_words(advice.bits_per_s),
        f"{advice.best.num_ranks:,}",
        advice.best.name,
        milliseconds(advice.best.step_s),
        milliseconds(advice.baseline.step_s),
        f"{advice.step_speedup:.2f}",
        short_reason(advice),
    ]


def short_reason(advice: Advice) -> str:
    """Describe the gain and the cost relative to the baseline in a few words."""
    best, base = advice.best, advice.baseline
    if best.name == base.name:
        other = advice.next_best
        if other is None:
            return "there is nothing else to choose from"
        saved, cost = base.payload_s - other.payload_s, other.coding_s - base.coding_s
        return (
            f"{other.name} would save {milliseconds(saved)} ms of sending for {milliseconds(cost)} ms "
            f"of coding{agreement_words(other, base)}"
        )
    saved, cost = base.payload_s - best.payload_s, best.coding_s - base.coding_s
    words = f"sending {milliseconds(saved)} ms shorter, coding {_signed(cost)}{agreement_words(best, base)}"
    if advice.best_bounded is not None:
        bounded = advice.best_bounded
        words += f"; with a bound: {bounded.name}, {milliseconds(bounded.step_s)} ms"
    return words


def _signed(seconds: float) -> str:
    word = "longer" if seconds > 0 else "shorter"
    return f"{milliseconds(abs(seconds))} ms {word}"


def bandwidth_figure(model: StepModel, num_ranks: int, sweep: Sequence[float]) -> str:
    """Return an SVG chart of step speed-ups by bandwidth."""
    places = {bits / 1e9: (model.at_bandwidth(bits, num_ranks), num_ranks) for bits in sweep}
    return _chart(f"Predicted steps on {num_ranks:,} ranks", "Gbit/s", places)


def ranks_figure(model: StepModel, ranks: Sequence[int]) -> str:
    """Return an SVG chart of step speed-ups by the number of ranks."""
    bandwidth = bandwidth_words(model.cluster.inter_bits_per_s)
    places = {float(number): (model, number) for number in ranks}
    return _chart(f"Predicted steps at {bandwidth} between nodes", "ranks", places)


def _chart(title: str, x_label: str, places: Mapping[float, tuple[StepModel, int]]) -> str:
    """Draw speed-ups over x; with many lines, those that are best nowhere are grey."""
    series: dict[str, list[tuple[float, float]]] = {}
    best = set()
    baseline = next(iter(places.values()))[0].baseline
    for x, (model, num_ranks) in places.items():
        advice = advise(model, num_ranks)
        best |= {one.name for one in (advice.best, advice.best_bounded) if one is not None}
        for one in model.predictions(num_ranks):
            if one.name != baseline:
                point = (x, advice.baseline.step_s / one.step_s)
                series.setdefault(one.name, []).append(point)
    faint = [name for name in series if name not in best] if len(series) > _FEW else []
    return line_chart(
        title, x_label, series, y_label=f"times faster than {baseline}", log_x=True,
        level=(1.0, baseline), faint=faint,
    )  # fmt: skip
