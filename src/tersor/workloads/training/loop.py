"""The loop: steps, evaluations, checkpoints and dumps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tersor.container import atomic_write
from tersor.errors import SpecError
from tersor.kernels.runtime.compile_notice import compile_seconds
from tersor.workloads.dlrm.run import DlrmRun
from tersor.workloads.metrics import ClickMetrics
from tersor.workloads.training.checkpoint import save_checkpoint
from tersor.workloads.training.log import LAST_KIND, RunLog

Progress = Callable[[int, int, str], None]
"""Is told the step, the number of steps, and a word about it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When what happens besides training; 0 means never.

    Attributes:
        log_every: steps between two lines about the loss.
        eval_every: steps between two evaluations; there is always one at the end.
        eval_samples: test samples of each; all if None.
        checkpoint_every: steps between two checkpoints; with a folder there is one at the end too.
        checkpoints: folder of the checkpoints.
        dump_every: steps between two dumps of looked-up rows; the last step is dumped too.
        dumps: folder of the dumps.
    """

    log_every: int = 50
    eval_every: int = 0
    eval_samples: int | None = None
    checkpoint_every: int = 0
    checkpoints: Path | None = None
    dump_every: int = 0
    dumps: Path | None = None

    def __post_init__(self) -> None:
        """Refuse negative numbers, and a dump without a folder."""
        if min(self.log_every, self.eval_every, self.checkpoint_every, self.dump_every) < 0:
            raise SpecError("a schedule counts steps from 0, which means never")
        if bool(self.dump_every) != (self.dumps is not None):
            raise SpecError("dumps need both a folder and how many steps lie between them")
        if self.checkpoint_every and self.checkpoints is None:
            raise SpecError("checkpoints need a folder")


def _is_time(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _now() -> float:
    """Return the seconds on a clock that stands still while kernels are compiled."""
    return time.perf_counter() - compile_seconds()


def _since(begin: float) -> float:
    # compilations that overlap may count for more than their time
    return max(0.0, _now() - begin)


def train(
    run: DlrmRun, schedule: Schedule, log: RunLog, progress: Progress | None = None
) -> ClickMetrics:
    """Train from the run's step to its last; return the metrics at the end. A collective call.

    The log ends with an evaluation and with what the exchange moved in all steps, those before a
    checkpoint included. Where nothing is left to train and the log says so already, nothing is
    written: neither lines nor a checkpoint. Compiling kernels is not part of ``step_s``.
    """
    first, steps = run.step_number, run.config.steps
    losses: list[float] = []
    seconds = 0.0
    metrics = None
    while run.step_number < steps:
        begin = _now()
        batch = run.batch(run.step_number)
        seconds += _since(begin)
        is_last = run.step_number == steps - 1
        if schedule.dumps is not None and (
            is_last or _is_time(schedule.dump_every, run.step_number)
        ):
            dump_rows(run, batch.ids, schedule.dumps)
        begin = _now()
        losses.append(run.step(batch))
        seconds += _since(begin)
        step, metrics = run.step_number, None
        if progress is not None:
            progress(step, steps, f"loss {losses[-1]:.4f}")
        if _is_time(schedule.log_every, step):
            loss = _mean_of_ranks(run, sum(losses) / len(losses))
            log.write("train", step, {"loss": loss, "step_s": seconds / len(losses)})
            losses, seconds = [], 0.0
        if _is_time(schedule.eval_every, step):
            metrics = run.evaluate(schedule.eval_samples)
            log.metrics(step, metrics)
        if _is_time(schedule.checkpoint_every, step) and schedule.checkpoints is not None:
            save_checkpoint(run, schedule.checkpoints)
    if (
        schedule.checkpoints is not None
        and first < steps
        and not _is_time(schedule.checkpoint_every, steps)
    ):
        save_checkpoint(run, schedule.checkpoints)
    is_told = first >= steps and log.ended_at == first
    if metrics is None:
        metrics = run.evaluate(schedule.eval_samples)
        if not is_told:
            log.metrics(run.step_number, metrics)
    if not is_told:
        log.write(LAST_KIND, run.step_number, run.exchange.stats.to_dict())
    return metrics


def _mean_of_ranks(run: DlrmRun, value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64, device=run.device)
    run.ranks.add_up(total)
    return float(total) / run.ranks.world_size


def dump_rows(run: DlrmRun, ids: torch.Tensor, folder: Path) -> None:
    """Write the looked-up rows of this rank's tables, one ``.npy`` per table and step.

    ``tables.json`` beside them says how many rows each table has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "tables.json") as file:
        file.write(json.dumps({"num_rows": list(run.config.shape.num_rows)}).encode() + b"\n")
    with torch.no_grad():
        found = run.model.look_up(ids.to(run.device))
    for table, rows in zip(run.model.table_numbers, found, strict=True):
        name = f"step-{run.step_number:09d}-table-{table:02d}.npy"
        with atomic_write(folder / name) as file:
            np.save(file, rows.cpu().numpy(), allow_pickle=False)
