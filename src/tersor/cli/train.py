"""``tersor train``: workloads that show what compression does to training."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tersor.cli.options import JsonOption, check_device, typed_command
from tersor.cli.screen import Screen, binary_size
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.policy import AdaptiveBounds
    from tersor.workloads.data.clicks import ClickSource
    from tersor.workloads.dlrm.config import DlrmConfig
    from tersor.workloads.dlrm.run import DlrmRun
    from tersor.workloads.dlrm.train import Schedule

app = typer.Typer(help="Train a model with compression in the loop.")


@app.callback()
def _train() -> None:
    """Train a model with compression in the loop."""


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


_Data = Annotated[
    str, _option("--data", "synthetic, or a Criteo log: train.txt, a folder of day_*, .npz.", "LOG")
]
_Preset = Annotated[str, _option("--preset", "Sizes of the model: small, kaggle or terabyte.")]
_MaxRows = Annotated[
    int | None, _option("--max-rows", "Most rows per table; ids are cut or hashed.", "N")
]
_Steps = Annotated[
    int, _option("--steps", "Steps to train for, those before a --resume included.", "N")
]
_Batch = Annotated[
    int | None, _option("--batch", "Samples of all ranks per step; default: the preset's.", "N")
]
_Rate = Annotated[float | None, _option("--lr", "Learning rate; default: the preset's.", "X")]
_Optimizer = Annotated[str, _option("--optimizer", "sgd or adagrad.")]
_Seed = Annotated[int, _option("--seed", "Of the weights, and of the synthetic log.")]
_Codec = Annotated[
    str, _option("--codec", "Of looked-up rows: an id, auto, or raw for no compression.")
]
_Backward = Annotated[
    str, _option("--backward", "Of gradients: none, half, group8, or another id.")
]
_Bounds = Annotated[
    str | None, _option("--bounds", "Relative bounds of tight, base and loose tables.", "T,B,L")
]
_Tight = Annotated[str | None, _option("--tight-tables", "Numbers of the tight tables.", "N,N,...")]
_Loose = Annotated[str | None, _option("--loose-tables", "Numbers of the loose tables.", "N,N,...")]
_Classes = Annotated[
    str, _option("--classes", "auto finds the classes of the tables from a batch; hand does not.")
]
_Decay = Annotated[
    str | None,
    _option(
        "--decay",
        "How bounds, looser at first, tighten: step, linear, log or constant; default: step.",
    ),
]
_Magnitude = Annotated[
    float | None,
    _option("--decay-magnitude", "How many times looser bounds start; default: 2.", "X"),
]
_DecayEnd = Annotated[
    int | None,
    _option(
        "--decay-end",
        "Iteration of the final bounds; default: a fifth of the steps; 0: final from the start.",
        "N",
    ),
]
_Bandwidth = Annotated[str, _option("--bandwidth", "Of the network, for --codec auto.", "RATE")]
_Device = Annotated[str, _option("--device", "cpu or cuda.")]
_RunFolder = Annotated[
    str | None, _option("--run", "Folder for the log, and for checkpoints.", "DIR")
]
_CheckpointEvery = Annotated[
    int, _option("--checkpoint-every", "Steps between checkpoints; 0 for none.", "N")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --run.")]
_EvalEvery = Annotated[
    int, _option("--eval-every", "Steps between evaluations; 0 for one at the end.", "N")
]
_EvalSamples = Annotated[
    int | None, _option("--eval-samples", "Test samples of each; default: all.", "N")
]
_Dumps = Annotated[
    str | None, _option("--dump-embeddings", "Write looked-up rows per table here.", "DIR")
]
_DumpEvery = Annotated[
    int, _option("--dump-every", "Steps between dumps; the last step is dumped too.", "N")
]
_LogEvery = Annotated[int, _option("--log-every", "Steps between lines about the loss.", "N")]
_Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard files to --run too.")
]


@app.command()
def dlrm(
    context: typer.Context,
    data: _Data = "synthetic",
    preset: _Preset = "small",
    max_rows: _MaxRows = None,
    steps: _Steps = 1000,
    batch: _Batch = None,
    rate: _Rate = None,
    optimizer: _Optimizer = "sgd",
    seed: _Seed = 0,
    codec: _Codec = "rows",
    backward: _Backward = "half",
    bounds: _Bounds = None,
    tight: _Tight = None,
    loose: _Loose = None,
    classes: _Classes = "auto",
    decay: _Decay = None,
    magnitude: _Magnitude = None,
    decay_end: _DecayEnd = None,
    bandwidth: _Bandwidth = "10gbit",
    device: _Device = "cpu",
    run_folder: _RunFolder = None,
    checkpoint_every: _CheckpointEvery = 0,
    resume: _Resume = False,
    eval_every: _EvalEvery = 0,
    eval_samples: _EvalSamples = None,
    dumps: _Dumps = None,
    dump_every: _DumpEvery = 100,
    log_every: _LogEvery = 50,
    tensorboard: _Tensorboard = False,
    as_json: JsonOption = False,
) -> int:
    """Train DLRM with the compressed exchange; alone, or one rank of torchrun.

    The environment variables TIGHTEN_EB_TABLES, LOOSEN_EB_TABLES, TIGHTEN_EB_VALUE, LOOSEN_EB_VALUE,
    BASE_ERROR_BOUND, EB_CONSTANT, EARLY_STAGE and DECAY_FUNC are understood; options go before them.
    """
    from tersor.workloads.dlrm.train import Schedule

    folder = None if run_folder is None else Path(run_folder)
    if (resume or checkpoint_every or tensorboard) and folder is None:
        raise SpecError("--resume, --checkpoint-every and --tensorboard need --run DIR")
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
    if folder is not None and not resume and (folder / "log.jsonl").exists():
        raise SpecError(f"{folder} holds a run; go on with --resume, or name another folder")
    _refuse_old_dumps(schedule, folder if resume else None)
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

    from tersor.bench.machine import origin
    from tersor.workloads.dlrm.log import RunLog
    from tersor.workloads.dlrm.run import DlrmRun
    from tersor.workloads.dlrm.train import train
    from tersor.workloads.ranks import joined

    check_device(place.device)
    device = torch.device(place.device)
    with ExitStack() as stack:
        stack.enter_context(_saying_what_is_kept(place.folder))
        stack.enter_context(joined(device))
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
            log.write("run", run.step_number, {"command": place.command, **facts})
        show = stack.enter_context(screen.steps("training"))
        metrics = train(run, schedule, log, show)
        if is_first:
            values = {"metrics": metrics.to_config(), "exchange": run.exchange.stats.to_config()}
            if schedule.dumps is not None:
                screen.say(
                    f"{len(_dumps_in(schedule.dumps))} dumps of looked-up rows are in {schedule.dumps}"
                )
            screen.result(values, _result(run, metrics), Text(_closing(source)))
    return 0


@contextmanager
def _saying_what_is_kept(folder: Path | None) -> Iterator[None]:
    """Tell who interrupts a run whether it can be resumed."""
    from tersor.workloads.dlrm.checkpoint import last_step

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
    from tersor.workloads.dlrm.checkpoint import resume

    step = resume(run, folder / "checkpoints")
    left = "" if step < run.config.steps else "; nothing is left to train"
    screen.say(f"resumed at step {step}{left}" if step else "no checkpoint yet; starting anew")
    unknown = step - run.exchange.stats.num_exchanges
    if unknown:
        screen.say(
            f"its checkpoint does not know what its first {unknown} steps sent; bytes, ratios and "
            "times are of later ones"
        )


def _refuse_old_dumps(schedule: Schedule, resumed: Path | None) -> None:
    """Raise ``SpecError`` for a folder with files, unless a run goes on there.

    Before ranks meet: none sees then what another has dumped.
    """
    from tersor.workloads.dlrm.checkpoint import complete_checkpoints

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


def _bounds(
    bounds: str | None, tight: str | None, loose: str | None, decay: str | None,
    magnitude: float | None, decay_end: int | None, steps: int,
) -> AdaptiveBounds:  # fmt: skip
    """Return the policy that environment and options ask for."""
    from dataclasses import replace

    from tersor.policy import AdaptiveBounds, ClassBounds, Decay
    from tersor.workloads.dlrm.environment import bounds_from

    policy = bounds_from(os.environ, AdaptiveBounds(decay=Decay(end=max(1, steps // 5))))
    if bounds is not None:
        try:
            values = [float(value) for value in bounds.split(",")]
            policy = replace(policy, bounds=ClassBounds(*values))
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"--bounds takes three growing numbers, as in 0.01,0.03,0.05, not {bounds!r}"
            ) from error
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

    from tersor.policy import AdaptiveBounds
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
