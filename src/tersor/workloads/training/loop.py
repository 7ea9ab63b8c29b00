"""The training loop: steps, evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tersor.errors import SpecError
from tersor.kernels.runtime.compile_notice import compile_seconds
from tersor.workloads.training.checkpoint import save_checkpoint
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.run import BatchT, MetricsT, TrainingRun

Progress = Callable[[int, int, str], None]
"""Called with the step, the total number of steps, and a short text."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Intervals of logging, evaluation and checkpoints; 0 means never.

    Attributes:
        log_every: steps between log lines of the loss.
        eval_every: steps between evaluations; there is always one at the end.
        eval_samples: test samples per evaluation; all if None.
        checkpoint_every: steps between checkpoints; with a folder there is always one at the end.
        checkpoints: folder of the checkpoints; None for no checkpoints.
    """

    log_every: int = 50
    eval_every: int = 0
    eval_samples: int | None = None
    checkpoint_every: int = 0
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        """Reject negative intervals, empty evaluations, and checkpoints without a folder."""
        if min(self.log_every, self.eval_every, self.checkpoint_every) < 0:
            raise SpecError("a schedule counts steps from 0, which means never")
        if self.eval_samples is not None and self.eval_samples < 1:
            raise SpecError(f"an evaluation needs at least one sample, not {self.eval_samples}")
        if self.checkpoint_every and self.checkpoints is None:
            raise SpecError("checkpoints need a folder")


def _is_time(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _now() -> float:
    """Return the seconds of a clock that stops while kernels are compiled."""
    return time.perf_counter() - compile_seconds()


def _since(begin: float) -> float:
    # overlapping compilations may count for more than the elapsed time
    return max(0.0, _now() - begin)


def train(
    run: TrainingRun[BatchT, MetricsT],
    schedule: Schedule,
    log: RunLog,
    progress: Progress | None = None,
    before_step: Callable[[BatchT], None] | None = None,
) -> MetricsT:
    """Train from the run's current step to its last; return the final metrics. A collective call.

    The log ends with an evaluation and the totals of all steps, including those before a checkpoint. If
    the run and its log are already complete, neither lines nor a checkpoint are written. ``step_s``
    excludes the compilation of kernels, balances and probes of activations, and ``before_step``, which is called with each
    batch.
    """
    first, steps = run.step_number, run.config.steps
    losses: list[float] = []
    seconds = 0.0
    metrics = None
    while run.step_number < steps:
        begin = _now()
        batch = run.batch(run.step_number)
        seconds += _since(begin)
        for kind, measure in (
            ("balance", run.balance_activations),
            ("probe", run.probe_activations),
        ):
            measured = measure(batch)
            if measured is not None:
                log.write(kind, run.step_number, measured)
        if before_step is not None:
            before_step(batch)
        begin = _now()
        losses.append(run.step(batch))
        seconds += _since(begin)
        step, metrics = run.step_number, None
        if progress is not None:
            progress(step, steps, f"loss {losses[-1]:.4f}")
        if _is_time(schedule.log_every, step):
            loss = _mean_of_ranks(run, sum(losses) / len(losses))
            step_s = seconds / len(losses)
            values = {"loss": loss, "step_s": step_s, **run.step_values(step_s)}
            log.write("train", step, {**values, **run.rate_values()})
            losses, seconds = [], 0.0
        if _is_time(schedule.eval_every, step):
            metrics = run.evaluate(schedule.eval_samples)
            log.write("eval", step, metrics.to_config())
        if schedule.checkpoints is not None and (
            step == steps or _is_time(schedule.checkpoint_every, step)
        ):
            save_checkpoint(run, schedule.checkpoints)
    is_logged = first >= steps and log.ended_at == first
    if metrics is None:
        metrics = run.evaluate(schedule.eval_samples)
        if not is_logged:
            log.write("eval", run.step_number, metrics.to_config())
    totals = run.totals()
    if not is_logged:
        log.write(run.totals_kind, run.step_number, totals)
    return metrics


def _mean_of_ranks(run: TrainingRun[Any, Any], value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64, device=run.device)
    run.ranks.add_up(total)
    return float(total) / run.ranks.world_size
