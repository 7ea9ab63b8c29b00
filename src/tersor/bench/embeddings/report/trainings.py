"""The report sections about training: pairs of runs, and the logs of single runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from tersor.bench.core.row_checks import is_count
from tersor.bench.embeddings.planning.trained import LINKS_HEAD, links_cells, links_sentence
from tersor.bench.plots import Bar, bar_chart, line_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links
from tersor.bench.report.runs import AccuracyRun, Run, TrainingRun
from tersor.bench.report.section import Section
from tersor.bench.report.trainings import add_tables, end_words, series_figures, standing

Points = list[tuple[float, float]]
_PLAIN, _SMALL = "uncompressed", "compressed"
_AUC, _LOGLOSS = 1, 2
_PAIRS_HEAD: Final = (
    "seed", "AUC without", "AUC with", "change", "logloss change", "ratio forward", "backward",
)  # fmt: skip
_SUMMARY_HEAD: Final = (
    "run", "AUC", "logloss", "forward MiB", "backward MiB", "ratio forward", "ratio backward",
    "exchange ms per step",
)  # fmt: skip


def _accuracy_sentence(run: AccuracyRun) -> str:
    """Describe the change of the AUC and its confidence interval in one sentence."""
    from tersor.workloads.training.judgement import Interval

    pairs = run.pairs
    change = Interval.of(
        [_metric(pair, _SMALL, "auc") - _metric(pair, _PLAIN, "auc") for pair in pairs]
    )
    ratio = sum(pair[_SMALL]["forward_ratio"] for pair in pairs) / len(pairs)
    if len(pairs) == 1:
        return f"One pair of trainings: the AUC changes by {change.mean:+.5f}, forward ratio {ratio:.1f}."
    word = "holds" if change.holds_zero else "does not hold"
    return (
        f"{len(pairs)} pairs of trainings: the AUC changes by {change.mean:+.5f}, 95 % interval "
        f"±{change.half_width:.5f}, which {word} zero; forward ratio {ratio:.1f}."
    )


def _metric(pair: Mapping[str, Any], run: str, name: str) -> float:
    return float(pair[run]["metrics"][name])


def accuracy_section(run: Run, _links: Links) -> Section | None:
    """Return the section with the curves, their differences, ratios per table, and every pair."""
    if not isinstance(run, AccuracyRun):
        return None
    source = _source(run)
    curves = {
        name: [(step, fmean(own)) for step, own in _by_step(run.pairs, name, _AUC).items()]
        for name in (_PLAIN, _SMALL)
    }
    mean = f"mean of {len(run.pairs)}" if len(run.pairs) > 1 else "one training each"
    lines = line_chart(
        f"AUC over training: {source}", "step", curves, y_label="AUC", dashed=[_SMALL]
    )
    figures = [Figure(slug(run.name, "auc"), lines, f"On the test samples; {mean}.")]
    for column, name in ((_AUC, "AUC"), (_LOGLOSS, "logloss")):
        points, widths = _changes(run.pairs, column)
        svg = line_chart(
            f"Change of {name} over training: {source}", "step", {"compressed minus not": points},
            y_label=f"change of {name}", half_widths={"compressed minus not": widths},
            level=(0.0, "no change"),
        )  # fmt: skip
        caption = "Mean of the paired differences, with 95 % intervals."
        figures.append(Figure(slug(run.name, f"{name}-change"), svg, caption))
    tables = _volumes(pair[_SMALL]["tables"] for pair in run.pairs)
    figures.append(_table_bars(run.name, source, tables))
    cells = [_pair_cells(pair) for pair in run.pairs]
    section = Section(_accuracy_sentence(run)).show(*figures)
    return section.table(f"Pairs of trainings on {source}", _PAIRS_HEAD, cells)


def _source(run: AccuracyRun) -> str:
    # the name of a synthetic log contains its seed, which differs from pair to pair
    return str(run.pairs[0]["source"]).partition(", seed")[0]


def _pair_cells(pair: Mapping[str, Any]) -> list[str]:
    plain, small = (_metric(pair, name, "auc") for name in (_PLAIN, _SMALL))
    loss = _metric(pair, _SMALL, "logloss") - _metric(pair, _PLAIN, "logloss")
    return [
        str(pair["seed"]), f"{plain:.5f}", f"{small:.5f}", f"{small - plain:+.5f}", f"{loss:+.5f}",
        f"{pair[_SMALL]['forward_ratio']:.1f}", f"{pair[_SMALL]['backward_ratio']:.1f}",
    ]  # fmt: skip


def _by_step(
    pairs: Sequence[Mapping[str, Any]], name: str, column: int
) -> dict[float, list[float]]:
    """Return the values by step, for steps that all pairs have; a missing value would skew a mean."""
    found: dict[float, list[float]] = {}
    for pair in pairs:
        for point in pair[name]["curve"]:
            found.setdefault(float(point[0]), []).append(float(point[column]))
    return {step: values for step, values in sorted(found.items()) if len(values) == len(pairs)}


def _changes(pairs: Sequence[Mapping[str, Any]], column: int) -> tuple[Points, list[float]]:
    """Return the mean change at each step and the half width of its confidence interval."""
    from tersor.workloads.training.judgement import Interval

    plain, small = (_by_step(pairs, name, column) for name in (_PLAIN, _SMALL))
    changes = {
        step: Interval.of([a - b for a, b in zip(small[step], plain[step], strict=True)])
        for step in plain
        if step in small
    }
    points = [(step, change.mean) for step, change in changes.items()]
    return points, [change.half_width for change in changes.values()]


def _volumes(tables: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, float]:
    """Return the ratio of every table, computed from the bytes of all runs together."""
    totals: dict[str, list[int]] = {}
    for one in tables:
        for table, (original, encoded) in one.items():
            total = totals.setdefault(table, [0, 0])
            total[0] += original
            total[1] += encoded
    return {table: original / max(1, encoded) for table, (original, encoded) in totals.items()}


def _table_bars(run: str, source: str, ratios: Mapping[str, float]) -> Figure:
    bars = [Bar(f"table {table}", ratio) for table, ratio in ratios.items()]
    svg = bar_chart(f"Ratio of looked-up rows per table: {source}", "ratio, by volume", bars)
    return Figure(slug(run, "tables"), svg, "Bytes before over bytes after compression, forward.")


def _training_sentence(run: TrainingRun) -> str:
    """Summarise the result of a quickstart or of one training run."""
    runs = run.result.get("runs", {})
    if len(runs) == 2:
        plain, small = runs.values()
        change = ""
        if None not in (small["auc"], plain["auc"]):
            change = f"; the AUC changed by {small['auc'] - plain['auc']:+.4f}"
        return (
            f"The same training sent {small['forward']['ratio']:.1f} times fewer bytes forward and "
            f"{small['backward']['ratio']:.1f} times fewer backward{change}."
        )
    lines = [line for log in run.logs.values() for line in standing(log)]
    sent = [line for line in lines if line["kind"] == "exchange"]
    ratio = _ratio_words(sent[-1]) if sent else ""
    last = max((line["step"] for line in lines), default=0)
    return f"A training of {last:,} steps{end_words(run)}{ratio}."


def _ratio_words(line: Mapping[str, Any]) -> str:
    """Describe the forward ratio, and the steps it covers if a checkpoint did not know all of them."""
    steps = line["step"]
    counted = line.get("num_exchanges", steps)
    if not is_count(counted) or not counted:
        return ""
    part = f" in its last {counted:,} steps" if counted < steps else ""
    return f", forward ratio {line['forward']['ratio']:.1f}{part}"


def training_section(run: Run, _links: Links) -> Section | None:
    """Return the section with the runs side by side, what their logs hold by step, and the model's tables."""
    if not isinstance(run, TrainingRun):
        return None
    section = Section(_training_sentence(run))
    if run.result:
        section.table("Runs of the same training", _SUMMARY_HEAD, _summary(run.result["runs"]))
        best = run.result.get("best_auc")
        if best is not None:
            section.text(f"The best AUC that any model can reach on this log is {best:.4f}.")
        links = run.result.get("links")
        if links is not None:
            section.text(links_sentence(links))
            section.table("A step on other links, predicted", LINKS_HEAD, links_cells(links))
            section.text(links["how"])
    tables_figure = _model_tables(run)
    section.show(*series_figures(run), *([] if tables_figure is None else [tables_figure]))
    if not run.result:
        add_tables(section, run)
    tables = run.result.get("tables", [])
    if tables:
        head = ("table", "rows", "class", "final bound", "ratio", "why")
        section.table("Tables of the model", head, [_table_cells(table) for table in tables])
    return section


def _summary(runs: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for name, one in runs.items():
        auc, logloss, seconds = (one.get(k) for k in ("auc", "logloss", "exchange_s_per_step"))
        forward, backward = one["forward"], one["backward"]
        lines.append([
            name, "" if auc is None else f"{auc:.4f}", "" if logloss is None else f"{logloss:.4f}",
            f"{forward['encoded_nbytes'] / 2**20:.2f}", f"{backward['encoded_nbytes'] / 2**20:.2f}",
            f"{forward['ratio']:.2f}", f"{backward['ratio']:.2f}",
            "" if seconds is None else f"{1e3 * seconds:.2f}",
        ])  # fmt: skip
    return lines


def _model_tables(run: TrainingRun) -> Figure | None:
    """Return bars of every table's ratio, from the result or else from the last line of a log."""
    tables = run.result.get("tables", [])
    if tables:
        bars = [
            Bar(f"table {table.get('table', k)}", table["ratio"], str(table.get("class", "")))
            for k, table in enumerate(tables)
        ]
        title = "Ratio of looked-up rows per table, by class"
        svg = bar_chart(title, "ratio, by volume", bars)
        return Figure(
            slug(run.name, "tables"), svg, "Tight tables have a narrower bound than base ones."
        )
    logs = [
        line["tables"]
        for log in run.logs.values()
        for line in standing(log)
        if line["kind"] == "exchange"
    ]
    return _table_bars(run.name, run.name, _volumes(logs[-1:])) if logs and logs[-1] else None


def _table_cells(table: Mapping[str, Any]) -> list[str]:
    bound = table.get("bound")
    return [
        str(table.get("table", "")), f"{table['num_rows']:,}", str(table.get("class", "")),
        "" if bound is None else str(bound), f"{table['ratio']:.1f}", str(table.get("reason", "")),
    ]  # fmt: skip
