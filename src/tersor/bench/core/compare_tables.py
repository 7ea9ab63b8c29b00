"""Render a comparison of result files as a table for people and as values for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict
from rich.markup import escape
from rich.table import Table

from tersor.bench.core.blocks import TITLES
from tersor.bench.core.blocks import shown as figure_text
from tersor.bench.core.compare import Comparison, FigureChange, RowPair, TimeChange
from tersor.bench.core.rows import ResultRow

_COLOURS: Final = {
    "slower": "red", "faster": "green", "worse": "red", "better": "green", "same": "dim",
}  # fmt: skip


def comparison_table(
    comparison: Comparison, names: tuple[str, str], *, every_pair: bool = False
) -> Table:
    """Return a table of the changed pairs, the most important first, or of every pair.

    Times are shown as speeds relative to the first file: 0.50 takes twice as long.
    """
    shown = [pair for pair in comparison.pairs if every_pair or pair.changed]
    timed = list(dict.fromkeys(change.name for pair in shown for change in pair.times))
    figures = [name for name in TITLES if any(name in p.before.figures() for p in shown)]
    has_groups = any(pair.before.group is not None for pair in shown)
    table = Table(title=escape(f"{names[1]} against {names[0]}: speed, ratio, worst error"))
    for name in ("input", "codec", "bound", *(["group"] if has_groups else []), "threads"):
        table.add_column(name, justify="right" if name in ("bound", "threads") else "left")
    for name in (
        *(f"{name} speed" for name in timed),
        "ratio",
        "worst error",
        *(TITLES[name] for name in figures),
    ):
        table.add_column(name, justify="right")
    for pair in shown:
        row = pair.before
        changes = {change.name: change for change in pair.times}
        judged = {change.name: change for change in pair.figures}
        table.add_row(
            escape(row.input),
            escape(f"{row.codec} (peer)" if row.peer else row.codec),
            "" if row.relative_bound is None else f"{row.relative_bound:g}",
            *([escape(row.group or "")] if has_groups else []),
            str(row.threads),
            *(_time_cell(changes.get(name)) for name in timed),
            _ratio_cell(pair),
            _error_cell(pair),
            *(_figure_cell(judged.get(name)) for name in figures),
        )
    return table


def _time_cell(change: TimeChange | None) -> str:
    if change is None:
        return ""
    colour = _COLOURS[change.verdict]
    return f"[{colour}]{change.speed:.2f} times, {change.verdict}[/{colour}]"


def _figure_cell(change: FigureChange | None) -> str:
    if change is None:
        return ""
    before, after = (figure_text(change.name, one) for one in (change.before, change.after))
    if change.verdict == "same":
        return before
    colour = _COLOURS[change.verdict]
    return f"[{colour}]{before} to {after}, {change.verdict}[/{colour}]"


def _ratio_cell(pair: RowPair) -> str:
    before, after = pair.before.ratio, pair.after.ratio
    if pair.size == "same":
        return f"{before:.2f}"
    # show more digits if two would hide the change
    places = 2 if f"{before:.2f}" != f"{after:.2f}" else 6
    colour = "red" if pair.size == "larger" else "green"
    return f"[{colour}]{before:.{places}f} to {after:.{places}f}[/{colour}]"


def _error_cell(pair: RowPair) -> str:
    before, after = pair.before.worst_error, pair.after.worst_error
    if pair.error == "same":
        return "" if before is None or after is None else f"{before:.4g}"
    words = f"{before:.6g} to {after:.6g}"
    if pair.error in ("larger", "smaller"):
        return words
    colour = "red" if pair.error == "bound broken" else "green"
    return f"[{colour}]{words}, {pair.error}[/{colour}]"


def comparison_sentence(comparison: Comparison) -> str:
    """Summarise the comparison in one sentence."""
    pairs = comparison.pairs
    sizes = Counter(pair.size for pair in pairs)
    broken = sum(pair.error == "bound broken" for pair in pairs)
    words = (
        f"measurements in both files: {len(pairs)}; times: {comparison.count('slower')} slower, "
        f"{comparison.count('faster')} faster, {comparison.count('same')} the same within noise; "
        f"sizes: {sizes['larger']} larger, {sizes['smaller']} smaller, {sizes['same']} the same"
    )
    if any(pair.figures for pair in pairs):
        worse, better = comparison.count("worse"), comparison.count("better")
        words = f"{words}; quality and memory: {worse} worse, {better} better"
    return f"{words}; bounds newly broken: {broken}" if broken else words


def unmatched_sentences(comparison: Comparison, names: tuple[str, str]) -> list[str]:
    """Return one sentence for each file that has rows without a counterpart."""
    sides = (comparison.only_before, comparison.only_after)
    return [
        f"only in {name}: {_by_codec(rows)}"
        for name, rows in zip(names, sides, strict=True)
        if rows
    ]


def _by_codec(rows: Sequence[ResultRow]) -> str:
    counts = Counter(f"{row.suite} {row.codec}" for row in rows)
    return ", ".join(f"{name} ({n} rows)" if n > 1 else name for name, n in counts.items())


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as JSON-ready values."""
    return {
        "pairs": [_pair_values(pair) for pair in comparison.pairs],
        "only_before": [_identity(row) for row in comparison.only_before],
        "only_after": [_identity(row) for row in comparison.only_after],
        "warnings": list(comparison.warnings),
    }


def _identity(row: ResultRow) -> dict[str, Any]:
    names = ("suite", "codec", "spec", "input", "device", "num_values", "threads", "group", "peer")
    return {name: getattr(row, name) for name in names}


def _changes(changes: Sequence[TimeChange] | Sequence[FigureChange]) -> dict[str, dict[str, Any]]:
    return {
        one.name: {
            "verdict": one.verdict, "before": asdict(one.before), "after": asdict(one.after),
        }
        for one in changes
    }  # fmt: skip


def _pair_values(pair: RowPair) -> dict[str, Any]:
    before, after = pair.before, pair.after
    times, figures = _changes(pair.times), _changes(pair.figures)
    for change in pair.times:
        times[change.name] |= {"speed": change.speed, "intervals_overlap": change.overlap}
    return {
        **_identity(before),
        "changed": pair.changed,
        "times": times,
        "figures": figures,
        "size": pair.size,
        "ratio": {"before": before.ratio, "after": after.ratio},
        "error": pair.error,
        "worst_error": {"before": before.worst_error, "after": after.worst_error},
        "versions": {"before": before.version, "after": after.version},
        "commits": {"before": before.git_commit, "after": after.git_commit},
    }
