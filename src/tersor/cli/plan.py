"""``tersor plan``: predicts the gain from compression on a cluster, from rows measured elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.text import Text

from tersor.cli import plan_options as asked
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import ForceOption, JsonOption, names_of, refuse_given
from tersor.cli.plan_results import show_plan, write_lines
from tersor.cli.screen import Screen
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.core.rows import ResultRow
    from tersor.bench.planning.planner import Planner
    from tersor.planning import StepModel

_OF_CHECKS: Final = frozenset({"check", "hold_out", "model", "output", "force", "as_json"})
"""Parameters that apply to --check."""


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
    parameters: asked.Parameters = None,
    backend: asked.Backend = None,
    coding_gbps: asked.CodingSpeed = None,
    wrapper: asked.Wrapper = None,
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

    Rows are those of tersor bench embeddings, kernels or shards. Nothing is measured. With --check FILE
    the model is tried on measured exchanges; exits with 1 unless at least 12 of them, and most,
    are predicted within 20 %.
    """
    given = dict(locals())
    screen = Screen(as_json=as_json)
    _check_new(plot, output, force=force)
    if check is not None:
        if rows is not None:
            raise SpecError("give --rows to plan, or --check to try the model, not both")
        refuse_given(
            context, lambda name: name not in _OF_CHECKS, "plans: name rows with --rows FILE"
        )
        return _check(screen, check, hold_out, model, output)
    refuse_given(context, lambda name: name == "hold_out", "checks: name rows with --check FILE")
    if rows is None:
        raise SpecError(
            "name result rows with --rows FILE; tersor bench embeddings and tersor bench shards make them"
        )
    _plan(screen, context, given)
    return 0


def _plan(screen: Screen, context: typer.Context, given: Mapping[str, Any]) -> None:
    """Plan with the arguments of ``plan``, given by name."""
    from tersor.planning import parse_ranks

    measured, planner = _read(given["rows"])
    _refuse_foreign(context, planner)
    chosen = {name: given[name] for name in planner.choices}
    if chosen["codecs"] is not None:
        chosen["codecs"] = names_of(chosen["codecs"])
    fit = planner.fit(measured, **chosen)
    values = {key: given[key] for key in planner.keys}
    planned = fit.model(_description(given["cluster"], given["trace"], values))
    numbers = parse_ranks(given["ranks"])
    _compare_batches(screen, given["trace"], planned, numbers)
    shown = (given[name] for name in ("bandwidth_sweep", "plot", "output"))
    show_plan(screen, planner, fit, planned, numbers, *shown)


def _read(paths: Sequence[str]) -> tuple[list[ResultRow], Planner]:
    from tersor.bench.core.row_file import read_rows
    from tersor.bench.sites import planner_of

    rows = [row for path in paths for row in read_rows(path)]
    return rows, planner_of(rows)


def _refuse_foreign(context: typer.Context, planner: Planner) -> None:
    """Raise ``SpecError`` for an option that does not apply to rows of this kind."""
    from tersor.bench.sites import planners

    for other in planners():
        foreign = other.options - planner.options
        refuse_given(
            context, foreign.__contains__, f"rows of {other.name}; these are of {planner.name}"
        )


def _check_new(plot: str | None, output: str | None, *, force: bool) -> None:
    if plot is not None and Path(plot).suffix.lower() != ".svg":
        raise SpecError(f"a plot is an .svg file, not {plot}")
    for path in (plot, output):
        if path is not None and Path(path).exists() and not force:
            raise SpecError(f"{path} exists; choose another name, or overwrite it with --force")
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise SpecError(f"there is no folder {Path(path).parent} for {path}; make it first")


def _description(
    cluster: str | None, trace: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    from tersor.bench.embeddings.planning.trace import computing_s
    from tersor.planning import read_cluster_file

    given = {name: value for name, value in options.items() if value is not None}
    from_file = {} if cluster is None else read_cluster_file(cluster)
    if trace is not None:
        if "compute_ms" in given:
            raise SpecError("give --compute-ms or the --trace to take it from, not both")
        if "allreduce_mbytes" in {**from_file, **given}:
            raise SpecError(
                "the computing time of a --trace holds the all-reduce; give no allreduce_mbytes with it"
            )
        given = {"allreduce_mbytes": 0.0, **given, "compute_ms": computing_s(trace) * 1e3}
    for one, other in (("batch", "batch_per_rank"), ("batch_per_rank", "batch")):
        if one in given and other not in given:
            from_file.pop(other, None)
    return {**from_file, **given}


def _compare_batches(
    screen: Screen, trace: str | None, model: StepModel, ranks: Sequence[int]
) -> None:
    """Print a note if a trace has another batch size than the plan; its compute time is not scaled."""
    from tersor.bench.embeddings.planning.model import Model
    from tersor.bench.embeddings.planning.trace import samples_per_rank

    traced = None if trace is None else samples_per_rank(trace)
    if traced is None or not isinstance(model, Model):
        return
    planned = {model.workload.rows_per_slice(number) for number in ranks}
    if planned != {traced}:
        words = " to ".join(dict.fromkeys(f"{n:,.6g}" for n in (min(planned), max(planned))))
        screen.say(
            f"computing is that of {traced:,.6g} samples per rank, and the plan has {words}: "
            "--batch-per-rank makes them equal"
        )


def _check(screen: Screen, path: str, hold_out: str, model: str | None, output: str | None) -> int:
    from tersor.bench.planning.check import check_table

    rows, planner = _read([path])
    found = planner.check([row for row in rows if model in (None, row.input)], hold_out)
    points = [point.to_config() for point in found.points]
    write_lines(output, points)
    values = {
        "points": points, "num_hits": found.num_hits, "passed": found.passed,
        "constants": found.constants(),
    }  # fmt: skip
    words = [Text(sentence) for sentence in (*found.constants(), found.sentence)]
    screen.result(values, check_table(found), *words)
    return 0 if found.passed else CHECK_FAILED
