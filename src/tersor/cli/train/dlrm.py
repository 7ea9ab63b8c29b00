"""``tersor train dlrm``."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from tersor.bench.core.tables import terminal_table
from tersor.cli.options import JsonOption, typed_command
from tersor.cli.screen import Screen, binary_size
from tersor.cli.train import dlrm_options as own
from tersor.cli.train import options as every
from tersor.cli.train.session import Session, run_training
from tersor.cli.wording import counted
from tersor.errors import SpecError

if TYPE_CHECKING:
    import torch

    from tersor.sites.embeddings import AdaptiveBounds, ClassBounds
    from tersor.workloads.data.clicks import ClickSource
    from tersor.workloads.dlrm import DlrmConfig, DlrmRun
    from tersor.workloads.dlrm.dumps import Dumps
    from tersor.workloads.metrics import ClickMetrics
    from tersor.workloads.training.loop import Schedule


def dlrm(
    context: typer.Context,
    data: own.Data = "synthetic",
    preset: own.Preset = "small",
    max_rows: own.MaxRows = None,
    steps: every.Steps = 1000,
    batch: every.Batch = None,
    rate: every.Rate = None,
    optimizer: own.Optimizer = "sgd",
    seed: every.Seed = 0,
    codec: own.Codec = "rows",
    backward: own.Backward = "half",
    bounds: own.Bounds = None,
    tight: own.Tight = None,
    loose: own.Loose = None,
    classes: own.Classes = "auto",
    decay: own.Decay = None,
    magnitude: own.Magnitude = None,
    decay_end: own.DecayEnd = None,
    bandwidth: own.Bandwidth = "10gbit",
    device: every.Device = "cpu",
    run_folder: every.RunFolder = None,
    checkpoint_every: every.CheckpointEvery = 0,
    resume: every.Resume = False,
    eval_every: every.EvalEvery = 0,
    eval_samples: every.EvalSamples = None,
    dumps: own.Dumps = None,
    dump_every: own.DumpEvery = 100,
    log_every: every.LogEvery = 50,
    tensorboard: every.Tensorboard = False,
    as_json: JsonOption = False,
) -> int:
    """Train DLRM with the compressed exchange; alone, or one rank of torchrun.

    The environment variables TIGHTEN_EB_TABLES, LOOSEN_EB_TABLES, TIGHTEN_EB_VALUE, LOOSEN_EB_VALUE,
    BASE_ERROR_BOUND, EB_CONSTANT, EARLY_STAGE and DECAY_FUNC are understood; options take precedence.
    """
    from tersor.workloads.dlrm.dumps import Dumps

    folder = None if run_folder is None else Path(run_folder)
    screen = Screen(as_json=as_json)
    session = Session(screen, typed_command(context), device, folder, resume, tensorboard)
    schedule = session.schedule(log_every, eval_every, eval_samples, checkpoint_every)
    source = _open(data, max_rows, seed)
    config = _config(
        source, preset, steps, batch, rate, optimizer, seed, codec, backward, bandwidth
    )
    policy = _bounds(bounds, tight, loose, decay, magnitude, decay_end, steps)
    dumped = None if dumps is None else Dumps(Path(dumps), dump_every)
    return _train(session, schedule, source, config, policy, classes, dumped)


def _train(
    session: Session, schedule: Schedule, source: ClickSource, config: DlrmConfig,
    policy: AdaptiveBounds, classes: str, dumped: Dumps | None,
) -> int:  # fmt: skip
    from tersor.workloads.dlrm import DlrmRun

    def make_run(device: torch.device) -> DlrmRun:
        return DlrmRun(_classified(config, policy, source, classes), source, device)

    def check() -> None:
        if dumped is not None and not session.has_checkpoint_to_resume():
            dumped.refuse_files()

    def show(run: DlrmRun, metrics: ClickMetrics, totals: dict[str, Any]) -> None:
        if dumped is not None:
            session.screen.say(
                f"{dumped.num_files()} dumps of looked-up rows are in {dumped.folder}"
            )
        values = {"metrics": metrics.to_config(), run.totals_kind: totals}
        best = getattr(source, "best_auc", None)
        words = "" if best is None else f"The best AUC of any model on this log is {best():.4f}."
        session.screen.result(values, _result(run, metrics, totals), Text(words))

    before_step = None if dumped is None else dumped.write_if_due
    return run_training(session, schedule, make_run, show, check=check, before_step=before_step)


def _open(data: str, max_rows: int | None, seed: int) -> ClickSource:
    from tersor.workloads.data.opening import open_clicks

    options: dict[str, Any] = {} if max_rows is None else {"max_rows": max_rows}
    if data == "synthetic":
        options["seed"] = seed
        options.setdefault("max_rows", 100_000)
    return open_clicks(data, **options)


def _config(
    source: ClickSource, preset: str, steps: int, batch: int | None, rate: float | None,
    optimizer: str, seed: int, codec: str, backward: str, bandwidth: str,
) -> DlrmConfig:  # fmt: skip
    from tersor.planning import parse_bandwidth
    from tersor.workloads.dlrm import DlrmConfig
    from tersor.workloads.models.dlrm import PRESETS

    if steps < 1:
        raise SpecError(f"--steps must be at least 1, not {steps}")
    if preset not in PRESETS:
        raise SpecError(f"--preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    known = PRESETS[preset]
    spec: Any = {"optimizer": optimizer}
    return DlrmConfig(
        shape=replace(known.shape, num_rows=source.num_rows),
        batch=known.batch if batch is None else batch,
        steps=steps,
        learning_rate=known.learning_rate if rate is None else rate,
        seed=seed,
        codec=codec,
        backward=backward,
        bandwidth_gbit_s=parse_bandwidth(bandwidth) / 1e9,
        **spec,
    )


def _numbers(name: str, text: str) -> frozenset[int]:
    if not re.fullmatch(r"\s*\d+(\s*[, ]\s*\d+)*\s*", text):
        raise SpecError(f"{name} is a list of table numbers, as in 2,3,9, not {text!r}")
    return frozenset(int(number) for number in re.findall(r"\d+", text))


def _class_bounds(text: str) -> ClassBounds:
    from tersor.sites.embeddings import ClassBounds

    try:
        values = [float(value) for value in text.split(",")]
        tight, base, loose = values * 3 if len(values) == 1 else values
        return ClassBounds(tight, base, loose)
    except ValueError as error:
        raise SpecError(
            "--bounds takes one number for all classes, or three growing ones, as in 0.01,0.03,0.05, "
            f"not {text!r}"
        ) from error


def _bounds(
    bounds: str | None, tight: str | None, loose: str | None, decay: str | None,
    magnitude: float | None, decay_end: int | None, steps: int,
) -> AdaptiveBounds:  # fmt: skip
    """Return the policy set by the environment and the options; options take precedence."""
    from tersor.sites.embeddings import AdaptiveBounds, Decay
    from tersor.workloads.dlrm.environment import bounds_from

    policy = bounds_from(os.environ, AdaptiveBounds(decay=Decay(end=max(1, steps // 5))))
    if bounds is not None:
        policy = replace(policy, bounds=_class_bounds(bounds))
    if tight is not None:
        policy = replace(policy, tight=_numbers("--tight-tables", tight))
    if loose is not None:
        policy = replace(policy, loose=_numbers("--loose-tables", loose))
    changes: dict[str, Any] = {"shape": decay, "magnitude": magnitude, "end": decay_end}
    changes = {name: value for name, value in changes.items() if value is not None}
    return replace(policy, decay=replace(policy.decay, **changes)) if changes else policy


def _classified(
    config: DlrmConfig, policy: AdaptiveBounds, source: ClickSource, classes: str
) -> DlrmConfig:
    """Return the configuration with its bounds; tables are classified unless classes are given."""
    from tersor.sites.embeddings import AdaptiveBounds
    from tersor.workloads.dlrm.comparison import sample_classes

    if classes not in ("auto", "hand"):
        raise SpecError(f"--classes must be auto or hand, not {classes!r}")
    if classes == "auto" and not policy.tight and not policy.loose:
        found = sample_classes(config, source, policy.bounds)
        policy = AdaptiveBounds.from_classes(found, bounds=policy.bounds, decay=policy.decay)
    return replace(config, bounds=policy)


def _result(run: DlrmRun, metrics: ClickMetrics, totals: dict[str, Any]) -> Table:
    shown = [
        ("AUC", f"{metrics.auc:.4f}"),
        ("logloss", f"{metrics.logloss:.4f}"),
        ("accuracy", f"{metrics.accuracy:.4f}"),
    ]
    # an old checkpoint may have no counts, and nothing was trained since
    if totals["num_exchanges"]:
        ranks = run.ranks.world_size
        sent = "sent" if ranks == 1 else f"sent by all {ranks} ranks"
        for direction in ("forward", "backward"):
            volume = totals[direction]
            shown += [
                (f"{direction}, {sent}", binary_size(volume["encoded_nbytes"])),
                (f"ratio {direction}", f"{volume['ratio']:.2f}"),
            ]
    title = f"DLRM on {run.data_name}, {counted(run.config.steps, 'step')}"
    return terminal_table(title, ("", "value"), shown, words=("",))
