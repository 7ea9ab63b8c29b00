"""``tersor train gpt``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from tersor.bench.core.tables import terminal_table
from tersor.cli.options import JsonOption, typed_command
from tersor.cli.screen import Screen
from tersor.cli.train import activation_options as saved
from tersor.cli.train import gpt_options as own
from tersor.cli.train import options as every
from tersor.cli.train.session import Session, run_training
from tersor.cli.wording import counted
from tersor.errors import SpecError

if TYPE_CHECKING:
    import torch

    from tersor.workloads.data.tokens import TokenSource
    from tersor.workloads.gpt import GptConfig, GptMetrics, GptRun
    from tersor.workloads.training.loop import Schedule


def gpt(
    context: typer.Context,
    data: own.Data = "synthetic",
    validation: own.Validation = None,
    tokenizer: own.Tokenizer = "bytes",
    vocabulary: own.Vocabulary = 8192,
    cache: own.Cache = None,
    preset: own.Preset = "2M",
    length: own.Context = None,
    steps: every.Steps = 1000,
    batch: every.Batch = None,
    accumulation: own.Accumulation = 1,
    rate: every.Rate = None,
    decay_steps: every.DecaySteps = None,
    dtype: every.Dtype = "fp32",
    scheme: own.Scheme = "exact",
    ranks: own.Ranks = 1,
    ranks_per_node: own.RanksPerNode = None,
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
    """Train a GPT on a text; alone, or one rank of torchrun, which shards the model."""
    from tersor.workloads.data.text_opening import open_text

    folder = None if run_folder is None else Path(run_folder)
    screen = Screen(as_json=as_json)
    session = Session(screen, typed_command(context), device, folder, resume, tensorboard)
    schedule = session.schedule(log_every, eval_every, eval_samples, checkpoint_every)
    known: dict[str, Any] = {"accumulation": accumulation, "dtype": dtype, "seed": seed}
    known |= {"scheme": scheme, "ranks": ranks, "ranks_per_node": ranks_per_node or 0}
    known["activations"] = saved.activation_options(
        activations,
        activation_step,
        activation_bound,
        target_score,
        activation_budget,
        activation_balance,
        activation_probe_every,
    )
    config = gpt_config(preset, length, steps, batch, rate, decay_steps, known)
    source = open_text(
        data, validation=validation, tokenizer=tokenizer, vocabulary=vocabulary, cache=cache, seed=seed
    )  # fmt: skip
    config = replace(config, shape=replace(config.shape, vocabulary=source.vocabulary))
    return _train(session, schedule, source, config)


def _train(session: Session, schedule: Schedule, source: TokenSource, config: GptConfig) -> int:
    from tersor.workloads.gpt import GptRun

    def make_run(where: torch.device) -> GptRun:
        return GptRun(config, source, where)

    def show(run: GptRun, metrics: GptMetrics, totals: dict[str, Any]) -> None:
        values = {"metrics": metrics.to_config(), run.totals_kind: totals}
        shown = _result(run, metrics, totals)
        session.screen.result(values, shown, Text(_best(source)))

    return run_training(session, schedule, make_run, show)


def gpt_config(
    preset: str, length: int | None, steps: int, batch: int | None, rate: float | None,
    decay_steps: int | None, known: dict[str, Any],
) -> GptConfig:  # fmt: skip
    """Return the configuration, with the preset's vocabulary, as that of the text is not known yet."""
    from tersor.workloads.gpt import GptConfig
    from tersor.workloads.models.gpt import PRESETS

    if steps < 1:
        raise SpecError(f"--steps must be at least 1, not {steps}")
    if decay_steps is not None and decay_steps < 1:
        raise SpecError(f"--decay-steps must be at least 1, not {decay_steps}")
    if preset not in PRESETS:
        raise SpecError(f"--preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    chosen = PRESETS[preset]
    shape = chosen.shape if length is None else replace(chosen.shape, context=length)
    return GptConfig(
        shape=shape,
        batch=chosen.batch if batch is None else batch,
        steps=steps,
        learning_rate=chosen.learning_rate if rate is None else rate,
        decay_steps=decay_steps or 0,
        **known,
    )


def _best(source: TokenSource) -> str:
    best = getattr(source, "best_loss", None)
    return "" if best is None else f"The best loss of any model on this text is {best():.4f}."


def _result(run: GptRun, metrics: GptMetrics, totals: dict[str, Any]) -> Table:
    shape = run.config.shape
    shown = [
        ("loss", f"{metrics.loss:.4f}"),
        ("perplexity", f"{metrics.perplexity:.2f}"),
        ("parameters", f"{shape.num_parameters:,}"),
        ("tokens trained on", f"{run.step_number * run.config.batch * shape.context:,}"),
        *saved.activation_lines(totals),
    ]
    title = f"GPT on {run.data_name}, {counted(run.config.steps, 'step')}"
    return terminal_table(title, ("", "value"), shown, words=("",))
