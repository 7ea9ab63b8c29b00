"""``tersor train alexnet`` and ``tersor train resnet34``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from tersor.bench.core.tables import terminal_table
from tersor.cli.options import JsonOption, typed_command
from tersor.cli.screen import Screen
from tersor.cli.train import activation_options as saved
from tersor.cli.train import options as every
from tersor.cli.train import vision_options as own
from tersor.cli.train.session import Session, run_training
from tersor.cli.wording import counted
from tersor.errors import SpecError

if TYPE_CHECKING:
    import torch

    from tersor.workloads.classification import ClassMetrics
    from tersor.workloads.data.images import ImageSource
    from tersor.workloads.training.loop import Schedule
    from tersor.workloads.vision import VisionConfig, VisionRun


def vision_command(model: str, usual_preset: str) -> Callable[..., int]:
    """Return the command that trains a model."""

    def train(
        context: typer.Context,
        data: own.Data = "synthetic",
        preset: own.Preset = usual_preset,
        side: own.Side = None,
        steps: own.Steps = None,
        epochs: own.Epochs = None,
        batch: every.Batch = None,
        rate: every.Rate = None,
        decay_steps: every.DecaySteps = None,
        dtype: every.Dtype = "fp32",
        activations: saved.Activations = None,
        activation_step: saved.Step = None,
        activation_bound: saved.Bound = None,
        target_score: saved.Score = None,
        activation_budget: saved.Budget = None,
        activation_balance: saved.Balance = None,
        activation_probe_every: saved.ProbeEvery = None,
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
        given = {"batch": batch, "learning_rate": rate, "side": side, "decay_steps": decay_steps}
        known: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
        known |= {
            "dtype": dtype,
            "seed": seed,
            "activations": saved.activation_options(
                activations,
                activation_step,
                activation_bound,
                target_score,
                activation_budget,
                activation_balance,
                activation_probe_every,
            ),
        }
        folder = None if run_folder is None else Path(run_folder)
        screen, command = Screen(as_json=as_json), typed_command(context)
        session = Session(screen, command, device, folder, resume, tensorboard)
        schedule = session.schedule(log_every, eval_every, eval_samples, checkpoint_every)
        config, source = _opened(model, preset, data, steps, epochs, known)
        return _train(session, schedule, source, config)

    return train


def _opened(
    model: str,
    preset: str,
    data: str,
    steps: int | None,
    epochs: float | None,
    known: dict[str, Any],
) -> tuple[VisionConfig, ImageSource]:
    """Return the configuration, with its steps resolved, and the images."""
    from tersor.workloads.data.image_opening import open_images
    from tersor.workloads.vision import VisionConfig

    config = VisionConfig.of(model, preset, **known)
    source = open_images(data, seed=config.seed)
    num_images = len(source.labels("train"))
    return replace(config, steps=_steps(steps, epochs, num_images // config.batch)), source


def _train(session: Session, schedule: Schedule, source: ImageSource, config: VisionConfig) -> int:
    from tersor.workloads.vision import VisionRun

    def make_run(where: torch.device) -> VisionRun:
        return VisionRun(config, source, where)

    def show(run: VisionRun, metrics: ClassMetrics, totals: dict[str, Any]) -> None:
        values = {"metrics": metrics.to_config(), run.totals_kind: totals}
        session.screen.result(values, _result(run, metrics, totals))

    return run_training(session, schedule, make_run, show)


def _steps(steps: int | None, epochs: float | None, steps_per_epoch: int) -> int:
    if steps is not None and epochs is not None:
        raise SpecError("give --steps or --epochs, not both")
    if epochs is None:
        count, words = 1000 if steps is None else steps, f"--steps {steps}"
    else:
        count, words = round(epochs * steps_per_epoch), f"--epochs {epochs:g}"
    if count < 1:
        raise SpecError(f"{words} is no step; give more")
    return count


def _result(run: VisionRun, metrics: ClassMetrics, totals: dict[str, Any]) -> Table:
    num_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    shown = [
        ("accuracy", f"{metrics.accuracy:.4f}"),
        ("loss", f"{metrics.loss:.4f}"),
        ("parameters", f"{num_parameters:,}"),
        ("images trained on", f"{run.step_number * run.config.batch:,}"),
        *saved.activation_lines(totals),
    ]
    title = f"{run.config.model} on {run.data_name}, {counted(run.config.steps, 'step')}"
    return terminal_table(title, ("", "value"), shown, words=("",))
