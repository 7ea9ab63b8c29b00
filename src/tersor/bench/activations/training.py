"""Run one training with or without compression in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Protocol

import torch

from tersor.bench.activations.contenders import INTEGER_FORMS
from tersor.bench.core.activation_facts import SavedBytes
from tersor.sites import activations
from tersor.workloads.ranks import run_local_ranks
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Progress, Schedule, train
from tersor.workloads.training.run import TrainingRun

MakeRun = Callable[[], TrainingRun[Any, Any]]
"""Builds a run that has a ``loss`` method for batches; it can be sent to another process."""


class _WithLoss(Protocol):
    """A training run whose gradients can be computed without taking a step."""

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch, with its autograd graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The result of a training run.

    Attributes:
        metrics: final metrics by name.
        curve: (step, validation loss) points.
        step_s: median seconds of a step.
        saved: what the last step saved; None without compression.
        score: mean gradient similarity index over the run; None without compression.
    """

    metrics: dict[str, float]
    curve: list[tuple[int, float]]
    step_s: float
    saved: SavedBytes | None
    score: float | None


@dataclass(slots=True)
class _Probes:
    """Compares gradients with and without compression at several steps of a training run.

    A controller with a target adjusts to the results, as in a user's training loop that probes.
    """

    run: Any
    every: int
    scores: list[float] = field(default_factory=list)

    def __call__(self, batch: Any) -> None:
        """Probe with a step's batch before the step is taken, if it is due."""
        compression: activations.Compression | None = self.run.activations
        if compression is None or self.run.step_number % self.every:
            return
        own: _WithLoss = self.run
        found = compression.probe(self.run.model, lambda: own.loss(batch))
        self.scores.append(found.score)


def train_once(
    rank: int,
    send: Callable[[Any], None],
    *,
    make_run: MakeRun,
    num_evals: int,
    eval_samples: int | None,
) -> None:
    """Train once, sending (step, steps, word) as progress and finally a ``Trained``.

    Args:
        rank: ignored; this process is the only rank.
        send: sends a message to the parent process.
        make_run: builds the training run.
        num_evals: number of evaluations, and of gradient probes.
        eval_samples: test samples of each evaluation; all if None.
    """
    del rank
    run = make_run()
    every = max(1, run.config.steps // num_evals)
    probes = _Probes(run, every)
    schedule = Schedule(log_every=every, eval_every=every, eval_samples=eval_samples)
    with RunLog(None) as log:
        metrics = train(
            run, schedule, log, lambda *shown: send(shown), before_step=probes
        ).to_config()
    run.close()
    send(
        Trained(
            metrics=metrics,
            curve=[(line["step"], line["loss"]) for line in log.lines if line["kind"] == "eval"],
            step_s=median(line["step_s"] for line in log.lines if line["kind"] == "train"),
            saved=None if run.activations is None else saved_bytes(run.activations.report()),
            score=fmean(probes.scores) if probes.scores else None,
        )
    )


def saved_bytes(report: activations.ActivationReport) -> SavedBytes:
    """Return what a step saved and held, from the report of a compression."""
    whole = [report.forms[name] for name in INTEGER_FORMS if name in report.forms]
    original, held = report.original_nbytes, report.held_nbytes
    return SavedBytes(
        nbytes=original,
        floats_nbytes=original - sum(one.original_nbytes for one in whole),
        held_nbytes=held,
        held_floats_nbytes=held - sum(one.held_nbytes for one in whole),
    )


def trained(
    make_run: MakeRun,
    *,
    num_evals: int,
    eval_samples: int | None,
    progress: Progress,
) -> Trained:
    """Train once in a separate process; see ``train_once``.

    Raises:
        ExchangeError: the training run failed.
    """
    found: list[Trained] = []

    def receive(rank: int, message: Any) -> None:
        del rank
        if isinstance(message, Trained):
            found.append(message)
        else:
            progress(*message)

    arguments = {"make_run": make_run, "num_evals": num_evals, "eval_samples": eval_samples}
    run_local_ranks(train_once, 1, arguments, receive)
    return found[0]
