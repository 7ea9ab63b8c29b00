"""``tersor quickstart``: trains a recommendation model with and without compression."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tersor.bench.core.tables import terminal_table
from tersor.cli.options import JsonOption, option, typed_command
from tersor.cli.report import write_whole
from tersor.cli.screen import Screen, binary_size, json_number
from tersor.errors import SpecError

_MAX_ROWS: Final = 20_000
_BATCH: Final = 1024
_TEST_SAMPLES: Final = 1 << 14
_PLAIN, _SMALL = "uncompressed", "adaptive"
_NEXT: Final = """What to try next:
  tersor train dlrm --help         longer runs, your own Criteo logs, other codecs and bounds
  tersor quickstart --steps 1000   the same with more data
  tersor plan --help               what to expect on your own cluster and link
  docs/embeddings.md               the exchange in your own model, in a few lines"""


def quickstart(
    context: typer.Context,
    steps: Annotated[int, option("--steps", "Training steps of each run.", "N")] = 300,
    ranks: Annotated[int, option("--ranks", "Processes that train together.", "N")] = 2,
    folder: Annotated[
        str, option("--run", "Where the log and the report go.", "DIR")
    ] = "runs/quickstart",
    seed: Annotated[int, option("--seed", "Seed of data and weights.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Train a small DLRM on real ranks, uncompressed and with adaptive compression, and compare.

    The click log is synthetic, but there is something to learn in it. Takes a few minutes on two CPU cores.
    """
    if steps < 1:
        raise SpecError(f"--steps must be at least 1, not {steps}")
    if ranks < 1 or _BATCH % ranks:
        raise SpecError(f"--ranks must divide a batch of {_BATCH} samples, not {ranks}")
    screen = Screen(as_json=as_json)
    begin = time.perf_counter()
    outcomes, classes, best = _trained(screen, steps, ranks, seed)
    seconds = time.perf_counter() - begin
    values = _values(outcomes, classes, best, steps, ranks, seconds)
    values["links"] = _links(outcomes, ranks)
    values["command"] = typed_command(context)
    target = _write(Path(folder), values, outcomes)
    shown: list[RenderableType] = [
        _summary_table(outcomes),
        *_shown_links(values["links"]),
        _table_of_tables(values["tables"]),
    ]
    closing = f"Report: {target}  ({seconds:.0f} s in all)\n{_NEXT}"
    screen.result(values, Text(_sentence(outcomes)), *shown, Text(closing))
    return 0


def _trained(
    screen: Screen, steps: int, ranks: int, seed: int
) -> tuple[dict[str, Any], list[Any], float]:
    """Run both trainings; return their outcomes, the classes of the tables, and the best AUC."""
    from tersor.sites.embeddings import AdaptiveBounds, Decay
    from tersor.workloads.data.synthetic import SyntheticClicks
    from tersor.workloads.dlrm import DlrmConfig, DlrmRun
    from tersor.workloads.dlrm.comparison import sample_classes
    from tersor.workloads.dlrm.config import uncompressed
    from tersor.workloads.models.dlrm import DlrmShape
    from tersor.workloads.training.comparison import train_settings

    source = SyntheticClicks.scaled(
        _MAX_ROWS, num_train=steps * _BATCH, num_test=_TEST_SAMPLES, seed=seed
    )
    shape = DlrmShape(source.num_rows, 16, (64, 32), (64, 32))
    config = DlrmConfig(
        shape=shape, batch=_BATCH, steps=steps, learning_rate=0.05, optimizer="adagrad", seed=seed
    )
    with ExitStack() as stack:
        stack.enter_context(screen.compiling())
        classes = sample_classes(config, source)
        decay = Decay("step", 2.0, max(1, steps // 5))
        config = replace(config, bounds=AdaptiveBounds.from_classes(classes, decay=decay))
        outcomes = train_settings(
            {
                _PLAIN: partial(DlrmRun, uncompressed(config), source),
                _SMALL: partial(DlrmRun, config, source),
            },
            ranks=ranks,
            eval_every=max(1, steps // 6),
            eval_samples=_TEST_SAMPLES,
            progress=stack.enter_context(screen.steps("training")),
        )
    return outcomes, classes, source.best_auc(_TEST_SAMPLES)


def _sentence(outcomes: dict[str, Any]) -> str:
    plain, small = outcomes[_PLAIN], outcomes[_SMALL]
    difference = small.metrics["auc"] - plain.metrics["auc"]
    forward, backward = small.volume("forward"), small.volume("backward")
    return (
        f"The same training sent {forward.ratio:.1f} times fewer bytes forward and "
        f"{backward.ratio:.1f} times fewer backward; the AUC changed by {difference:+.4f}."
    )


def _summary_table(outcomes: dict[str, Any]) -> Table:
    columns = (
        "run", "AUC", "logloss", "forward", "backward", "ratio forward", "ratio backward",
        "ms per step in exchange",
    )  # fmt: skip
    lines = []
    for name, one in outcomes.items():
        forward, backward = one.volume("forward"), one.volume("backward")
        lines.append([
            name, f"{one.metrics['auc']:.4f}", f"{one.metrics['logloss']:.4f}",
            binary_size(forward.encoded_nbytes), binary_size(backward.encoded_nbytes),
            f"{forward.ratio:.2f}", f"{backward.ratio:.2f}", f"{1e3 * one.exchange_s():.2f}",
        ])  # fmt: skip
    title = "DLRM without and with compression of its exchange"
    return terminal_table(title, columns, lines, words=("run",))


def _table_of_tables(tables: list[dict[str, Any]]) -> Table:
    title = "Tables: class, relative bound, and ratio of the looked-up rows"
    columns = ("table", "rows", "class", "final bound", "ratio", "why")
    lines = [
        [
            str(one["table"]), f"{one['num_rows']:,}", one["class"], f"{one['bound']:g}",
            f"{one['ratio']:.1f}", one["reason"],
        ]
        for one in tables
    ]  # fmt: skip
    return terminal_table(title, columns, lines, words=("class", "why"))


def _values(
    outcomes: dict[str, Any],
    classes: list[Any],
    best: float,
    steps: int,
    ranks: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the result as JSON values."""
    import torch

    from tersor.bench.core import machine
    from tersor.sites.embeddings import ClassBounds

    runs = {}
    for name, one in outcomes.items():
        runs[name] = {
            **{key: json_number(value) for key, value in one.metrics.items()},
            "exchange_s_per_step": one.exchange_s(),
            **{
                direction: {**asdict(volume), "ratio": volume.ratio}
                for direction in ("forward", "backward")
                for volume in [one.volume(direction)]
            },
        }
    bounds = ClassBounds()
    tables = [
        {
            "table": found.stats.table,
            "num_rows": found.stats.num_rows,
            "class": found.table_class,
            "bound": bounds.of(found.table_class),
            "ratio": outcomes[_SMALL].tables[found.stats.table].ratio,
            "reason": found.reason,
        }
        for found in classes
    ]
    return {
        "steps": steps, "ranks": ranks, "seconds": seconds, "best_auc": best, "runs": runs,
        "tables": tables, **machine.origin(torch.device("cpu")),
    }  # fmt: skip


def _links(outcomes: dict[str, Any], ranks: int) -> dict[str, Any] | None:
    """Predict step times on common links; None for one rank, which uses no link."""
    from tersor.bench.embeddings.planning.trained import predicted_links

    if ranks == 1:
        return None
    return predicted_links(outcomes[_PLAIN], outcomes[_SMALL], batch=_BATCH, num_ranks=ranks)


def _shown_links(links: dict[str, Any] | None) -> list[RenderableType]:
    from tersor.bench.embeddings.planning.trained import LINKS_HEAD, links_cells, links_sentence

    if links is None:
        return [Text("One rank sends nothing, so no link is predicted for; --ranks 2 has one.")]
    table = terminal_table("A step on other links, predicted", LINKS_HEAD, links_cells(links))
    return [Text(links_sentence(links)), table, Text(links["how"])]


def _write(folder: Path, values: dict[str, Any], outcomes: dict[str, Any]) -> Path:
    """Write ``result.json``, a log per run, and the report; return the report's path."""
    from tersor.bench.report import build_report
    from tersor.bench.report.runs import RESULT, read_quickstart
    from tersor.bench.sites import report_sections

    for name, one in outcomes.items():
        text = "".join(json.dumps(line) + "\n" for line in one.lines)
        write_whole(folder / f"{name}.jsonl", text)
    write_whole(folder / RESULT, json.dumps(values, indent=2))
    target = folder / "report.html"
    runs = [read_quickstart(folder, str(folder))]
    page = build_report(runs, report_sections(), title="tersor quickstart")
    write_whole(target, page.render())
    return target
