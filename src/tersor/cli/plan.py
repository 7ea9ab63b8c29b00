"""``tersor plan``: what compression would gain on a cluster, from rows measured elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from tersor.cli import plan_options as asked
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import ForceOption, JsonOption, names_of
from tersor.cli.screen import Screen
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.embeddings.planning.description import Workload
    from tersor.bench.embeddings.planning.model import Fit, Model
    from tersor.planning import Advice

_OF_CHECKS: Final = frozenset({"check", "hold_out", "model", "output", "force", "as_json"})
"""Parameters that mean something with --check."""


def plan(
    context: typer.Context,
    rows: asked.Rows = None,
    check: asked.Check = None,
    hold_out: asked.HoldOut = "link",
    ranks: asked.Ranks = "2,8,64,512,4096",
    cluster: asked.Cluster = None,
    ranks_per_node: asked.PerNode = None,
    inter: asked.Inter = None,
    intra: asked.Intra = None,
    latency: asked.Latency = None,
    intra_latency: asked.IntraLatency = None,
    efficiency: asked.Efficiency = None,
    batch: asked.Batch = None,
    batch_per_rank: asked.PerRank = None,
    sample_nbytes: asked.Sample = None,
    compute_ms: asked.Compute = None,
    trace: asked.Trace = None,
    allreduce_mbytes: asked.AllReduce = None,
    overlap: asked.Overlap = None,
    bandwidth_sweep: asked.Sweep = None,
    codecs: asked.Codecs = None,
    model: asked.Model = None,
    setting: asked.Setting = "",
    bound: asked.Bound = None,
    backward: asked.Backward = "float32",
    plot: asked.Plot = None,
    output: asked.Output = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> int:
    """Predict exchange and step times on a cluster from result rows, and the best choice.

    Nothing is measured. With --check FILE the model is tried on measured exchanges; exits with 1 when
    fewer than 12 of them, or not most, are within 20 %.
    """
    from tersor.planning import parse_ranks

    screen = Screen(as_json=as_json)
    _check_new(plot, output, force=force)
    if check is not None:
        if rows is not None:
            raise SpecError("give --rows to plan, or --check to try the model, not both")
        _refuse(context, lambda name: name not in _OF_CHECKS, "plans: name rows with --rows FILE")
        return _check(screen, check, hold_out, model, output)
    _refuse(context, lambda name: name == "hold_out", "checks: name rows with --check FILE")
    if rows is None:
        raise SpecError("name result rows with --rows FILE; tersor bench embeddings makes them")
    values = {
        "ranks_per_node": ranks_per_node, "inter": inter, "intra": intra, "latency": latency,
        "intra_latency": intra_latency, "efficiency": efficiency, "batch": batch,
        "batch_per_rank": batch_per_rank, "sample_nbytes": sample_nbytes, "compute_ms": compute_ms,
        "allreduce_mbytes": allreduce_mbytes, "overlap": overlap,
    }  # fmt: skip
    fit = _fit(rows, codecs, model=model, bound=bound, backward=backward, setting=setting)
    planned = fit.model(_description(cluster, trace, values))
    _compare_batches(screen, trace, planned.workload, parse_ranks(ranks))
    _show(screen, fit, planned, parse_ranks(ranks), bandwidth_sweep, plot, output)
    return 0


def _check_new(plot: str | None, output: str | None, *, force: bool) -> None:
    if plot is not None and Path(plot).suffix.lower() != ".svg":
        raise SpecError(f"a plot is an .svg file, not {plot}")
    for path in (plot, output):
        if path is not None and Path(path).exists() and not force:
            raise SpecError(f"{path} exists; choose another name, or overwrite it with --force")
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise SpecError(f"there is no folder {Path(path).parent} for {path}; make it first")


def _refuse(context: typer.Context, is_odd: Callable[[str], bool], what: str) -> None:
    """Raise ``SpecError`` for the first option that was given and is only for something else."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if is_odd(name) and source is not None and source.name != "DEFAULT":
            raise SpecError(f"{parameter.opts[0]} is for {what}")


def _description(
    cluster: str | None, trace: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    from tersor.bench.embeddings.planning.trace import computing_s
    from tersor.planning import read_cluster_file

    given = {name: value for name, value in options.items() if value is not None}
    said = {} if cluster is None else read_cluster_file(cluster)
    if trace is not None:
        if "compute_ms" in given:
            raise SpecError("give --compute-ms or the --trace to take it from, not both")
        if "allreduce_mbytes" in {**said, **given}:
            raise SpecError(
                "the computing time of a --trace holds the all-reduce; give no allreduce_mbytes with it"
            )
        given = {"allreduce_mbytes": 0.0, **given, "compute_ms": computing_s(trace) * 1e3}
    for one, other in (("batch", "batch_per_rank"), ("batch_per_rank", "batch")):
        if one in given and other not in given:
            said.pop(other, None)
    return {**said, **given}


def _compare_batches(
    screen: Screen, trace: str | None, workload: Workload, ranks: Sequence[int]
) -> None:
    """Say that a trace is of other batches than the plan: computing is taken as it is."""
    from tersor.bench.embeddings.planning.trace import samples_per_rank

    traced = None if trace is None else samples_per_rank(trace)
    planned = {workload.rows_per_slice(number) for number in ranks}
    if traced is not None and planned != {traced}:
        words = " to ".join(dict.fromkeys(f"{n:,.6g}" for n in (min(planned), max(planned))))
        screen.say(
            f"computing is that of {traced:,.6g} samples per rank, and the plan has {words}: "
            "--batch-per-rank makes them equal"
        )


def _fit(paths: Sequence[str], codecs: str | None, **chosen: Any) -> Fit:
    from tersor.bench.core.rows import read_rows
    from tersor.bench.embeddings.planning.fit import fit_rows

    rows = [row for path in paths for row in read_rows(path)]
    return fit_rows(rows, codecs=None if codecs is None else names_of(codecs), **chosen)


def _show(
    screen: Screen,
    fit: Fit,
    model: Model,
    ranks: Sequence[int],
    sweep_text: str | None,
    plot: str | None,
    output: str | None,
) -> None:
    from tersor.bench.embeddings.planning import tables
    from tersor.planning import advise, parse_sweep, turns

    def lines_of(model: Model, number: int) -> list[dict[str, Any]]:
        advice = advise(model, number)
        return [tables.plan_row(model, found, advice) for found in model.predictions(number)]

    lines = [line for number in ranks for line in lines_of(model, number)]
    written = list(lines)
    shown: list[RenderableType] = []
    values: dict[str, Any] = {"plan": lines, "source": fit.source}
    sweep = None if sweep_text is None else parse_sweep(sweep_text)
    if sweep is None:
        shown.append(tables.plan_table(model, ranks))
        shown += [Text(advise(model, number).reason) for number in ranks]
    else:
        swept = [advise(model.at_bandwidth(b, n), n) for n in ranks for b in sweep]
        changes = [(n, turn) for n in ranks for turn in turns(model, n, sweep[0], sweep[-1])]
        shown.append(tables.sweep_table(swept))
        shown += [Text(f"{number:,} ranks: {turn.reason}") for number, turn in changes]
        values["sweep"] = [_sweep_values(advice) for advice in swept]
        written += [
            line for n in ranks for b in sweep for line in lines_of(model.at_bandwidth(b, n), n)
        ]
    if plot is not None:
        drawn = (
            tables.ranks_figure(model, ranks)
            if sweep is None
            else tables.bandwidth_figure(model, ranks[0], sweep)
        )
        Path(plot).write_text(drawn + "\n", encoding="utf-8")
        if sweep is not None and len(ranks) > 1:
            screen.say(f"{plot} shows {ranks[0]:,} ranks, the first of --ranks")
    _write_lines(output, written)
    screen.say(fit.source)
    if (words := fit.beyond(model, ranks)) is not None:
        screen.say(words)
    if any(line["is_extrapolated"] for line in lines):
        sizes = " to ".join(dict.fromkeys(f"{rows:,.0f}" for rows in fit.measured_rows))
        screen.say(f"ratios with ~ are guesses: slices of {sizes} rows were measured")
    if (words := fit.missing(model.workload)) is not None:
        screen.say(words)
    screen.result(values, *shown)


def _sweep_values(advice: Advice) -> dict[str, Any]:
    return {
        "num_ranks": advice.best.num_ranks,
        "bits_per_s": advice.bits_per_s,
        "best": advice.best.name,
        "step_s": advice.best.step_s,
        "step_speedup": advice.step_speedup,
        "reason": advice.reason,
    }


def _write_lines(path: str | None, lines: Iterable[Mapping[str, Any]]) -> None:
    if path is not None:
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        Path(path).write_text(text, encoding="utf-8")


def _check(screen: Screen, path: str, hold_out: str, model: str | None, output: str | None) -> int:
    from tersor.bench.core.rows import read_rows
    from tersor.bench.embeddings.planning.check import check, check_table

    found = check((row for row in read_rows(path) if model in (None, row.input)), hold_out)
    points = [point.to_config() for point in found.points]
    _write_lines(output, points)
    values = {
        "points": points, "num_hits": found.num_hits, "passed": found.passed,
        "constants": found.constants(),
    }  # fmt: skip
    words = [Text(sentence) for sentence in (*found.constants(), found.sentence)]
    screen.result(values, check_table(found), *words)
    return 0 if found.passed else CHECK_FAILED
