"""``tersor train dlrm``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from tersor.cli.options import JsonOption, check_device, typed_command
from tersor.cli.screen import Screen, binary_size
from tersor.cli.train import options as asked
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.sites.embeddings import AdaptiveBounds, ClassBounds
    from tersor.workloads.data.clicks import ClickSource
    from tersor.workloads.dlrm.config import DlrmConfig
    from tersor.workloads.dlrm.run import DlrmRun, Ranks
    from tersor.workloads.training.loop import Schedule


def dlrm(
    context: typer.Context,
    data: asked.Data = "synthetic",
    preset: asked.Preset = "small",
    max_rows: asked.MaxRows = None,
    steps: asked.Steps = 1000,
    batch: asked.Batch = None,
    rate: asked.Rate = None,
    optimizer: asked.Optimizer = "sgd",
    seed: asked.Seed = 0,
    codec: asked.Codec = "rows",
    backward: asked.Backward = "half",
    bounds: asked.Bounds = None,
    tight: asked.Tight = None,
    loose: asked.Loose = None,
    classes: asked.Classes = "auto",
    decay: asked.Decay = None,
    magnitude: asked.Magnitude = None,
    decay_end: asked.DecayEnd = None,
    bandwidth: asked.Bandwidth = "10gbit",
    device: asked.Device = "cpu",
    run_folder: asked.RunFolder = None,
    checkpoint_every: asked.CheckpointEvery = 0,
    resume: asked.Resume = False,
    eval_every: asked.EvalEvery = 0,
    eval_samples: asked.EvalSamples = None,
    dumps: asked.Dumps = None,
    dump_every: asked.DumpEvery = 100,
    log_every: asked.LogEvery = 50,
    tensorboard: asked.Tensorboard = False,
    as_json: JsonOption = False,
) -> int:
    """Train DLRM with the compressed exchange; alone, or one rank of torchrun.

    The environment variables TIGHTEN_EB_TABLES, LOOSEN_EB_TABLES, TIGHTEN_EB_VALUE, LOOSEN_EB_VALUE,
    BASE_ERROR_BOUND, EB_CONSTANT, EARLY_STAGE and DECAY_FUNC are understood; options go before them.
    """
    from tersor.workloads.training.loop import Schedule

    folder = None if run_folder is None else Path(run_folder)
    if (resume or checkpoint_every or tensorboard) and folder is None:
        raise SpecError("--resume, --checkpoint-every and --tensorboard need --run-dir DIR")
    source = _open(data, max_rows, seed)
    config = _config(
        source, preset, steps, batch, rate, optimizer, seed, codec, backward, bandwidth
    )
    policy = _bounds(bounds, tight, loose, decay, magnitude, decay_end, steps)
    schedule = Schedule(
        log_every=log_every, eval_every=eval_every, eval_samples=eval_samples,
        checkpoint_every=checkpoint_every,
        checkpoints=None if folder is None or not checkpoint_every else folder / "checkpoints",
        dump_every=dump_every if dumps else 0, dumps=Path(dumps) if dumps else None,
    )  # fmt: skip
    place = _Place(device, folder, resume, tensorboard, classes, typed_command(context))
    return _trained(Screen(as_json=as_json), config, policy, source, schedule, place)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where and how a run takes place."""

    device: str
    folder: Path | None
    resume: bool
    tensorboard: bool
    classes: str
    command: str


def _trained(
    screen: Screen,
    config: DlrmConfig,
    policy: AdaptiveBounds,
    source: ClickSource,
    schedule: Schedule,
    place: _Place,
) -> int:
    import torch

    from tersor.bench.core.machine import origin
    from tersor.workloads.dlrm.run import DlrmRun, Ranks
    from tersor.workloads.ranks import joined
    from tersor.workloads.training.log import RunLog
    from tersor.workloads.training.loop import train

    check_device(place.device)
    device = torch.device(place.device)
    with ExitStack() as stack:
        stack.enter_context(_saying_what_is_kept(place.folder))
        stack.enter_context(joined(device))
        _enter_folder(stack, Ranks.current(), schedule, place)
        stack.enter_context(screen.compiling())
        run = DlrmRun(_classified(config, policy, source, place.classes), source, device)
        stack.callback(run.close)
        if place.resume and place.folder is not None:
            _resume(screen, run, place.folder)
        is_first = run.ranks.rank == 0
        folder = place.folder if is_first else None
        log = stack.enter_context(RunLog(folder, tensorboard=place.tensorboard))
        # a log that ends at the last step is whole: there is nothing to add
        is_told = run.step_number == run.config.steps == log.ended_at
        if is_first and not is_told:
            facts = {
                "source": source.name, "config": run.config.to_config(),
                "ranks": run.ranks.world_size, **origin(device),
            }  # fmt: skip
            origins = {"command": place.command, "run_id": run.run_id}
            log.write("run", run.step_number, {**origins, **facts})
        show = stack.enter_context(screen.steps("training"))
        metrics = train(run, schedule, log, show)
        if is_first:
            values = {"metrics": metrics.to_config(), "exchange": run.exchange.stats.to_dict()}
            if schedule.dumps is not None:
                screen.say(
                    f"{len(_dumps_in(schedule.dumps))} dumps of looked-up rows are in {schedule.dumps}"
                )
            screen.result(values, _result(run, metrics), Text(_closing(source)))
    return 0


def _enter_folder(stack: ExitStack, ranks: Ranks, schedule: Schedule, place: _Place) -> None:
    """Keep others out of the run's folder, and refuse what must not be written over."""
    from tersor.workloads.training.checkpoint import remove_leavings
    from tersor.workloads.training.run_folder import held

    # together: none sees then what another has written already
    ranks.together(lambda: _refuse_what_is_there(schedule, place))
    if place.folder is None:
        return
    writes_checkpoints = schedule.checkpoints is not None or place.resume
    stack.enter_context(held(place.folder, ranks, shared=writes_checkpoints))
    # again: the run that this one waited for may have written a log and ended
    ranks.together(lambda: _refuse_old_run(place))
    checkpoints = place.folder / "checkpoints"
    ranks.together(lambda: remove_leavings(checkpoints) if ranks.rank == 0 else None)


def _refuse_what_is_there(schedule: Schedule, place: _Place) -> None:
    _refuse_old_run(place)
    _refuse_old_dumps(schedule, place.folder if place.resume else None)


@contextmanager
def _saying_what_is_kept(folder: Path | None) -> Iterator[None]:
    """Tell who interrupts a run whether it can be resumed."""
    from tersor.workloads.training.checkpoint import last_step

    try:
        yield
    except KeyboardInterrupt as error:
        if folder is not None:
            step = last_step(folder / "checkpoints")
            kept = f"the checkpoint of step {step} is in {folder}; go on with --resume"
            none = f"{folder} has no checkpoint yet; --resume starts anew there"
            error.args = (none if step is None else kept,)
        raise


def _resume(screen: Screen, run: DlrmRun, folder: Path) -> None:
    """Go on from the last checkpoint, if there is one, and say where."""
    from tersor.workloads.training.checkpoint import resume

    step = resume(run, folder / "checkpoints")
    left = "" if step < run.config.steps else "; nothing is left to train"
    screen.say(f"resumed at step {step}{left}" if step else "no checkpoint yet; starting anew")
    unknown = step - run.exchange.stats.num_exchanges
    if unknown:
        screen.say(
            f"its checkpoint does not know what its first {unknown} steps sent; bytes, ratios and "
            "times are of later ones"
        )


def _refuse_old_run(place: _Place) -> None:
    """Raise ``SpecError`` for a folder with the log or the checkpoints of a run, unless it goes on."""
    from tersor.workloads.training.checkpoint import complete_checkpoints

    folder = place.folder
    if folder is None or place.resume:
        return
    if (folder / "log.jsonl").exists() or complete_checkpoints(folder / "checkpoints"):
        raise SpecError(f"{folder} holds a run; go on with --resume, or name another folder")


def _refuse_old_dumps(schedule: Schedule, resumed: Path | None) -> None:
    """Raise ``SpecError`` for a folder with files, unless a run goes on there."""
    from tersor.workloads.training.checkpoint import complete_checkpoints

    goes_on = resumed is not None and complete_checkpoints(resumed / "checkpoints")
    folder = schedule.dumps
    if folder is None or goes_on or not folder.exists():
        return
    if not folder.is_dir():
        raise SpecError(f"{folder} is a file; name a folder for the dumps")
    if any(folder.iterdir()):
        raise SpecError(f"{folder} is not empty; dumps go to a folder of their own")


def _dumps_in(folder: Path) -> list[Path]:
    return list(folder.glob("step-*-table-*.npy"))


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
    from dataclasses import replace

    from tersor.planning import parse_bandwidth
    from tersor.workloads.dlrm.config import DlrmConfig
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
        bandwidth_gbps=parse_bandwidth(bandwidth) / 8e9,
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
    """Return the policy that environment and options ask for."""
    from dataclasses import replace

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
    """Return the configuration with its bounds; classes are found unless any was given."""
    from dataclasses import replace

    from tersor.sites.embeddings import AdaptiveBounds
    from tersor.workloads.dlrm.comparison import sample_classes

    if classes not in ("auto", "hand"):
        raise SpecError(f"--classes must be auto or hand, not {classes!r}")
    if classes == "auto" and not policy.tight and not policy.loose:
        found = sample_classes(config, source, policy.bounds)
        policy = AdaptiveBounds.from_classes(found, bounds=policy.bounds, decay=policy.decay)
    return replace(config, bounds=policy)


def _result(run: DlrmRun, metrics: Any) -> Table:
    table = Table(title=f"DLRM on {run.source.name}, {run.config.steps} steps")
    for k, name in enumerate(("", "value")):
        table.add_column(name, justify="left" if k == 0 else "right")
    stats = run.exchange.stats
    shown = [
        ("AUC", f"{metrics.auc:.4f}"),
        ("logloss", f"{metrics.logloss:.4f}"),
        ("accuracy", f"{metrics.accuracy:.4f}"),
    ]
    # a checkpoint of before they were saved has none, and nothing was trained since
    if stats.num_exchanges:
        shown += [
            ("forward, sent by this rank", binary_size(stats.forward.encoded_nbytes)),
            ("ratio forward", f"{stats.forward.ratio:.2f}"),
            ("backward, sent by this rank", binary_size(stats.backward.encoded_nbytes)),
            ("ratio backward", f"{stats.backward.ratio:.2f}"),
        ]
    for name, value in shown:
        table.add_row(name, value)
    return table


def _closing(source: Any) -> str:
    best = getattr(source, "best_auc", None)
    return "" if best is None else f"The best AUC of any model on this log is {best():.4f}."
