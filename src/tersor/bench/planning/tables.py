"""A plan as tables, as figures, as JSON lines and as blocks of a page, which checks are too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table

from tersor.bench.core.row_checks import is_number
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import markdown_table, terminal_table
from tersor.bench.embeddings.planning.check import SUMMARY_COLUMNS, check, summary_cells
from tersor.bench.embeddings.planning.description import KEYS
from tersor.bench.embeddings.planning.fit import fit_rows
from tersor.bench.embeddings.planning.model import Model
from tersor.bench.plots import line_chart
from tersor.errors import SpecError
from tersor.planning import (
    BASELINE,
    Advice,
    Phases,
    Prediction,
    advise,
    agreement_words,
    bandwidth_words,
    parse_ranks,
    parse_sweep,
    turns,
)

PLAN_COLUMNS: Final = (
    "ranks", "exchange", "ratio", "forward ms", "ratio", "backward ms", "x float32", "step ms",
    "x float32", "pays up to", "",
)  # fmt: skip
"""What a table shows; ``docs/plan.md`` says what the columns mean."""
_FEW: Final = 6
"""Lines that a figure can show in colours of their own."""
_OWN: Final = ("ranks", "codecs", "bound", "backward", "input")
"""What the block of a plan may say beside the keys of a cluster."""
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
        "efficiency": model.efficiency,
        **{n: asdict(phases) | {"total_s": phases.total_s} for n, phases in found.phases.items()},
        "exchange_s": found.transfers_s,
        "compute_s": found.compute_s,
        "hidden_s": found.hidden_s,
        "allreduce_s": found.shared_s,
        "step_s": found.step_s,
        "exchange_speedup": base.transfers_s / found.transfers_s,
        "step_speedup": base.step_s / found.step_s,
        "break_even_bits_per_s": _break_even(model, found),
        "is_extrapolated": found.is_beyond,
        "keeps_bound": model.profiles[found.name].keeps_bound,
        "is_best": found.name == advice.best.name,
        "reason": advice.reason if found.name == advice.best.name else None,
    }


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
    lines = [cells for number in ranks for cells in plan_cells(model, number)]
    return terminal_table(title, PLAN_COLUMNS, lines, words=("exchange", ""), section=slice(1))


def plan_cells(model: Model, num_ranks: int) -> list[list[str]]:
    """Return what stands under ``PLAN_COLUMNS``, a line per way to exchange."""
    advice = advise(model, num_ranks)
    return [_cells(model, found, advice) for found in model.predictions(num_ranks)]


def _cells(model: Model, found: Prediction, advice: Advice) -> list[str]:
    base, is_base = advice.baseline, found.name == BASELINE
    is_best = found.name == advice.best.name
    return [
        f"{found.num_ranks:,}",
        found.name,
        *(
            text
            for phases in found.phases.values()
            for text in (_ratio(phases), _milliseconds(phases.total_s))
        ),
        "" if is_base else f"{base.transfers_s / found.transfers_s:.2f}",
        _milliseconds(found.step_s),
        "" if is_base else f"{base.step_s / found.step_s:.2f}",
        "" if is_base else break_even_words(_break_even(model, found)),
        ", ".join(filter(None, ("best" if is_best else "", _bound_words(model, found)))),
    ]


def _bound_words(model: Model, found: Prediction) -> str:
    keeps = model.profiles[found.name].keeps_bound
    return "" if keeps else "promises no bound" if keeps is None else "broke its bound"


def _ratio(phases: Phases) -> str:
    return f"{'~' if phases.is_beyond else ''}{phases.ratio:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds >= 0.01 else f"{seconds * 1e3:.3g}"


def sweep_table(advised: Iterable[Advice]) -> Table:
    """Show the best way to exchange at every bandwidth."""
    title, lines = "The best exchange by bandwidth", map(sweep_cells, advised)
    return terminal_table(title, SWEEP_COLUMNS, lines, words=("best", "why"), section=slice(1, 2))


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
            f"of coding{agreement_words(other, base)}"
        )
    saved, cost = base.payload_s - best.payload_s, best.coding_s - base.coding_s
    words = f"sending {_milliseconds(saved)} ms shorter, coding {_signed(cost)}{agreement_words(best, base)}"
    if advice.best_bounded is not None:
        bounded = advice.best_bounded
        words += f"; with a bound: {bounded.name}, {_milliseconds(bounded.step_s)} ms"
    return words


def _signed(seconds: float) -> str:
    word = "longer" if seconds > 0 else "shorter"
    return f"{_milliseconds(abs(seconds))} ms {word}"


def bandwidth_figure(model: Model, num_ranks: int, sweep: Sequence[float]) -> str:
    """Return an SVG of the speed-up of a step by bandwidth."""
    places = {bits / 1e9: (model.at_bandwidth(bits, num_ranks), num_ranks) for bits in sweep}
    return _chart(f"Predicted steps on {num_ranks:,} ranks", "Gbit/s", places)


def ranks_figure(model: Model, ranks: Sequence[int]) -> str:
    """Return an SVG of the speed-up of a step by the number of ranks."""
    bandwidth = bandwidth_words(model.cluster.inter_bits_per_s)
    places = {float(number): (model, number) for number in ranks}
    return _chart(f"Predicted steps at {bandwidth} between nodes", "ranks", places)


def _chart(title: str, x_label: str, places: Mapping[float, tuple[Model, int]]) -> str:
    """Draw speed-ups over x; what is best nowhere is grey, unless all are few."""
    series: dict[str, list[tuple[float, float]]] = {}
    best = set()
    for x, (model, num_ranks) in places.items():
        advice = advise(model, num_ranks)
        best |= {one.name for one in (advice.best, advice.best_bounded) if one is not None}
        for one in model.predictions(num_ranks):
            if one.name != BASELINE:
                point = (x, advice.baseline.step_s / one.step_s)
                series.setdefault(one.name, []).append(point)
    faint = [name for name in series if name not in best] if len(series) > _FEW else []
    return line_chart(
        title, x_label, series, y_label=f"times faster than {BASELINE}", log_x=True,
        level=(1.0, BASELINE), faint=faint,
    )  # fmt: skip


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
        rows, codecs=codecs, model=options.get("input"), bound=bound,
        backward=options.get("backward", BASELINE),
    )  # fmt: skip
    return fit.model({k: v for k, v in said.items() if k in KEYS}), ranks


def _value(text: str) -> Any:
    """Return a number where it is one, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
