"""``tersor train gcn``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from tersor.bench.core.tables import terminal_table
from tersor.cli.options import JsonOption, check_device, numbers_of, refuse_given, typed_command
from tersor.cli.screen import Screen, binary_size
from tersor.cli.train import activation_options as saved
from tersor.cli.train import gcn_options as own
from tersor.cli.train import options as every
from tersor.cli.train.session import Session, run_training
from tersor.cli.wording import counted
from tersor.errors import SpecError

if TYPE_CHECKING:
    import torch

    from tersor.workloads.classification import ClassMetrics
    from tersor.workloads.data.graphs import Graph
    from tersor.workloads.gcn import GcnConfig, GcnRun
    from tersor.workloads.gcn.study import FormCost
    from tersor.workloads.training.loop import Schedule

_OF_STUDIES: Final = ("study", "data", "nodes", "seed", "device", "as_json")
"""Parameters that a study uses; the others are of trainings."""
_STUDIED_NODES: Final = (1_000, 4_000, 16_000, 64_000, 256_000)


def gcn(
    context: typer.Context,
    data: own.Data = "synthetic",
    nodes: own.Nodes = None,
    model: own.Model = "gcn",
    form: own.Form = "csr",
    hidden: own.Hidden = "16",
    dropout: own.Dropout = 0.5,
    fanouts: own.Fanouts = None,
    study: own.Study = False,
    steps: every.Steps = 200,
    batch: own.Batch = None,
    rate: own.Rate = 0.01,
    activations: saved.Activations = None,
    activation_step: saved.Step = None,
    activation_bound: saved.Bound = None,
    target_score: saved.Score = None,
    activation_budget: saved.Budget = None,
    activation_balance: saved.Balance = None,
    activation_probe_every: own.ProbeEvery = 0,
    seed: every.Seed = 0,
    device: every.Device = "cpu",
    run_folder: every.RunFolder = None,
    checkpoint_every: every.CheckpointEvery = 0,
    resume: every.Resume = False,
    eval_every: every.EvalEvery = 0,
    eval_samples: every.EvalSamples = None,
    log_every: every.LogEvery = 50,
    tensorboard: every.Tensorboard = False,
    as_json: JsonOption = False,
) -> int:
    """Train a graph network to tell the classes of nodes, or study the forms of its matrix."""
    from tersor.workloads.data.graph_opening import open_graph
    from tersor.workloads.gcn import GcnConfig

    screen = Screen(as_json=as_json)
    if study:
        refuse_given(
            context, lambda name: name not in _OF_STUDIES, "trainings; --study trains nothing"
        )
        return _study(screen, data, nodes, seed, device)
    folder = None if run_folder is None else Path(run_folder)
    session = Session(screen, typed_command(context), device, folder, resume, tensorboard)
    schedule = session.schedule(log_every, eval_every, eval_samples, checkpoint_every)
    if steps < 1:
        raise SpecError(f"--steps must be at least 1, not {steps}")
    graph = open_graph(data, seed=seed, num_nodes=nodes)
    graph.check_trainable()
    known: dict[str, Any] = {"model": model, "form": form, "dropout": dropout, "seed": seed}
    known["hidden"] = numbers_of(hidden, "--hidden", int)
    known["fanouts"] = () if fanouts is None else numbers_of(fanouts, "--fanouts", int)
    known["activations"] = saved.activation_options(
        activations, activation_step, activation_bound, target_score, activation_budget,
        activation_balance, activation_probe_every,
    )  # fmt: skip
    known["batch"] = len(graph.train) if batch is None else batch
    config = GcnConfig(steps=steps, learning_rate=rate, **known)
    return _train(session, schedule, graph, config)


def _train(session: Session, schedule: Schedule, graph: Graph, config: GcnConfig) -> int:
    from tersor.workloads.gcn import GcnRun

    def make_run(where: torch.device) -> GcnRun:
        return GcnRun(config, graph, where)

    def show(run: GcnRun, metrics: ClassMetrics, totals: dict[str, Any]) -> None:
        values = {"metrics": metrics.to_config(), run.totals_kind: totals}
        session.screen.result(values, _result(run, metrics, totals))

    return run_training(session, schedule, make_run, show)


def _result(run: GcnRun, metrics: ClassMetrics, totals: dict[str, Any]) -> Table:
    shown = [
        ("accuracy", f"{metrics.accuracy:.4f}"),
        ("loss", f"{metrics.loss:.4f}"),
        ("nodes", f"{run.graph.num_nodes:,}"),
        ("edges", f"{len(run.graph.indices) // 2:,}"),
        *saved.activation_lines(totals),
    ]
    title = f"{run.config.model} on {run.data_name}, {counted(run.config.steps, 'step')}"
    return terminal_table(title, ("", "value"), shown, words=("",))


def _study(screen: Screen, data: str, nodes: int | None, seed: int, device: str) -> int:
    """Show bytes and times of the forms, for one graph or for synthetic ones of increasing size."""
    import torch

    from tersor.workloads.gcn.study import form_costs, matrix_limit_nbytes, most_dense_nodes

    check_device(device)
    limit = matrix_limit_nbytes(torch.device(device))
    costs: list[FormCost] = []
    for graph in _studied(data, nodes, seed):
        screen.say(f"{graph.name}")
        costs += form_costs(graph, device, limit)
    lines = [
        (f"{cost.num_nodes:,}", f"{cost.num_entries:,}", cost.form, binary_size(cost.matrix_nbytes),
         "does not fit" if cost.product_ms is None else f"{cost.product_ms:.2f}")
        for cost in costs
    ]  # fmt: skip
    columns = ("nodes", "entries", "form", "matrix", "ms")
    table = terminal_table(
        "Product with 64 columns and its gradient",
        columns,
        lines,
        words=("form",),
        section=slice(1),
    )
    words = (
        f"Here a matrix may take {binary_size(limit)}, a quarter of the free memory: dense forms stop "
        f"fitting above {most_dense_nodes(limit):,} nodes."
    )
    screen.result(
        {"forms": [cost.to_config() for cost in costs], "limit_nbytes": limit}, table, Text(words)
    )
    return 0


def _studied(data: str, nodes: int | None, seed: int) -> list[Graph]:
    from tersor.workloads.data.graph_opening import SYNTHETIC, open_graph
    from tersor.workloads.data.synthetic_graph import SyntheticGraph

    if data != SYNTHETIC:
        return [open_graph(data, num_nodes=nodes)]
    sizes = _STUDIED_NODES if nodes is None else (nodes,)
    # features are not used, but there must be at least one per class
    return [SyntheticGraph(num_nodes=size, num_features=8, seed=seed).graph() for size in sizes]
