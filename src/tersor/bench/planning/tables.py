"""A plan as tables, as figures and as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table

from tersor.bench.svg import line_chart
from tersor.planning import (
    BASELINE,
    Advice,
    Model,
    Phases,
    Prediction,
    advise,
    bandwidth_words,
)

PLAN_COLUMNS: Final = (
    "ranks", "exchange", "ratio", "forward ms", "ratio", "backward ms", "x float32", "step ms",
    "x float32", "pays up to", "",
)  # fmt: skip
"""What a table shows; ``docs/plan.md`` says what the columns mean."""
SWEEP_COLUMNS: Final = ("bandwidth", "ranks", "best", "step ms", "float32 ms", "x float32", "why")


def plan_row(model: Model, found: Prediction, advice: Advice) -> dict[str, Any]:
    """Return one prediction as a JSON line: seconds, bits per second and bytes."""
    cluster, workload = model.cluster, model.workload
    base = advice.baseline
    return {
        "kind": "plan",
        "codec": found.name,
        "num_ranks": found.num_ranks,
        "rows_per_slice": workload.rows_per_slice(found.num_ranks),
        "sample_nbytes": model.sample_nbytes,
        "cluster": asdict(cluster),
        "efficiency": workload.efficiency or model.transport.efficiency,
        "forward": _phases_row(found.forward),
        "backward": _phases_row(found.backward),
        "exchange_s": found.exchange_s,
        "compute_s": found.compute_s,
        "hidden_s": found.hidden_s,
        "allreduce_s": found.allreduce_s,
        "step_s": found.step_s,
        "exchange_speedup": base.exchange_s / found.exchange_s,
        "step_speedup": base.step_s / found.step_s,
        "break_even_bits_per_s": _break_even(model, found),
        "is_extrapolated": found.is_beyond,
        "is_best": found.name == advice.best.name,
        "reason": advice.reason if found.name == advice.best.name else None,
    }


def _phases_row(phases: Phases) -> dict[str, Any]:
    return asdict(phases) | {"total_s": phases.total_s}


def _break_even(model: Model, found: Prediction) -> float | None:
    return None if found.name == BASELINE else model.break_even(found.name, found.num_ranks)


def break_even_words(bits_per_s: float | None) -> str:
    """Return a break-even bandwidth for people.

    Example:
        >>> break_even_words(None), break_even_words(0.0), break_even_words(2.5e10)
        ('always pays', 'never pays', '25gbit')
    """
    if bits_per_s is None:
        return "always pays"
    return "never pays" if bits_per_s == 0 else bandwidth_words(bits_per_s)


def plan_table(model: Model, ranks: Sequence[int]) -> Table:
    """Show every way to exchange at every number of ranks; ~ marks a ratio that is a guess."""
    link = bandwidth_words(model.cluster.inter_bits_per_s)
    title = f"Predicted times at {link} between nodes; ~ ratio beyond the measured slices"
    table = Table(title=title)
    for name in PLAN_COLUMNS:
        table.add_column(name, justify="left" if name in ("exchange", "") else "right")
    for number in ranks:
        for cells in plan_cells(model, number):
            table.add_row(*cells)
        table.add_section()
    return table


def plan_cells(model: Model, num_ranks: int) -> list[list[str]]:
    """Return what stands under ``PLAN_COLUMNS``, a line per way to exchange."""
    advice = advise(model, num_ranks)
    return [_cells(model, found, advice) for found in model.predictions(num_ranks)]


def _cells(model: Model, found: Prediction, advice: Advice) -> list[str]:
    base, is_base = advice.baseline, found.name == BASELINE
    return [
        f"{found.num_ranks:,}",
        found.name,
        _ratio(found.forward),
        _milliseconds(found.forward.total_s),
        _ratio(found.backward),
        _milliseconds(found.backward.total_s),
        "" if is_base else f"{base.exchange_s / found.exchange_s:.2f}",
        _milliseconds(found.step_s),
        "" if is_base else f"{base.step_s / found.step_s:.2f}",
        "" if is_base else break_even_words(_break_even(model, found)),
        "best" if found.name == advice.best.name else "",
    ]


def _ratio(phases: Phases) -> str:
    return f"{'~' if phases.is_beyond else ''}{phases.ratio:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds >= 0.01 else f"{seconds * 1e3:.3g}"


def sweep_table(advised: Iterable[Advice]) -> Table:
    """Show the best way to exchange at every bandwidth."""
    table = Table(title="The best exchange by bandwidth")
    for name in SWEEP_COLUMNS:
        table.add_column(name, justify="left" if name in ("best", "why") else "right")
    previous = None
    for advice in advised:
        if previous not in (None, advice.best.num_ranks):
            table.add_section()
        previous = advice.best.num_ranks
        table.add_row(*sweep_cells(advice))
    return table


def sweep_cells(advice: Advice) -> list[str]:
    """Return what stands under ``SWEEP_COLUMNS``."""
    return [
        bandwidth_words(advice.bits_per_s),
        f"{advice.best.num_ranks:,}",
        advice.best.name,
        _milliseconds(advice.best.step_s),
        _milliseconds(advice.baseline.step_s),
        f"{advice.step_speedup:.2f}",
        short_reason(advice),
    ]


def short_reason(advice: Advice) -> str:
    """Return what is gained and what it costs beside float32."""
    best, base = advice.best, advice.baseline
    if best.name == BASELINE:
        other = advice.next_best
        if other is None:
            return "there is nothing else to choose from"
        saved, cost = base.payload_s - other.payload_s, other.coding_s - base.coding_s
        return (
            f"{other.name} would save {_milliseconds(saved)} ms of sending for {_milliseconds(cost)} ms "
            "of coding"
        )
    saved, cost = base.payload_s - best.payload_s, best.coding_s - base.coding_s
    return f"sending {_milliseconds(saved)} ms shorter, coding {_signed(cost)}"


def _signed(seconds: float) -> str:
    word = "longer" if seconds > 0 else "shorter"
    return f"{_milliseconds(abs(seconds))} ms {word}"


def bandwidth_figure(model: Model, num_ranks: int, sweep: Sequence[float]) -> str:
    """Return an SVG of the speed-up of a step by bandwidth."""
    series: dict[str, list[tuple[float, float]]] = {}
    for bits in sweep:
        found = model.at_bandwidth(bits, num_ranks).predictions(num_ranks)
        for one in found[1:]:
            series.setdefault(one.name, []).append((bits / 1e9, found[0].step_s / one.step_s))
    title = f"Predicted steps on {num_ranks:,} ranks"
    return _chart(title, "Gbit/s", series)


def ranks_figure(model: Model, ranks: Sequence[int]) -> str:
    """Return an SVG of the speed-up of a step by the number of ranks."""
    series: dict[str, list[tuple[float, float]]] = {}
    for number in ranks:
        found = model.predictions(number)
        for one in found[1:]:
            series.setdefault(one.name, []).append((number, found[0].step_s / one.step_s))
    bandwidth = bandwidth_words(model.cluster.inter_bits_per_s)
    return _chart(f"Predicted steps at {bandwidth} between nodes", "ranks", series)


def _chart(title: str, x_label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    return line_chart(
        title, x_label, series, y_label=f"times faster than {BASELINE}", log_x=True,
        level=(1.0, BASELINE),
    )  # fmt: skip
