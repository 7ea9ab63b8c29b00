"""The same training with and without compression, on real ranks, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tersor.sites.embeddings import ClassBounds, Classification, Volume, classify
from tersor.workloads.data.clicks import ClickSource
from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.dlrm.run import DlrmRun
from tersor.workloads.models.dlrm import Dlrm
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train

Send = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to, over all ranks.

    Attributes:
        name: of the run.
        metrics: AUC, logloss and accuracy at the end.
        lines: what the run logged.
        steps: how many it took.
        directions: per direction the bytes, and the seconds of each phase on the slowest rank.
        tables: forward bytes per table.
    """

    name: str
    metrics: dict[str, float]
    lines: list[dict[str, Any]]
    steps: int
    directions: dict[str, tuple[Volume, dict[str, float]]] = field(default_factory=dict)
    tables: dict[int, Volume] = field(default_factory=dict)

    def exchange_s(self) -> float:
        """Return the seconds per step that the slowest rank spent in exchanges, both ways."""
        return sum(sum(times.values()) for _, times in self.directions.values()) / max(
            1, self.steps
        )

    def volume(self, direction: str) -> Volume:
        """Return the bytes of a direction."""
        return self.directions[direction][0]


def sample_classes(
    config: DlrmConfig, source: ClickSource, bounds: ClassBounds | None = None
) -> list[Classification]:
    """Class the tables of a model by the rows that its first batch looks up."""
    model = Dlrm(config.shape, range(len(config.shape.num_rows)), config.seed)
    batch = source.read("train", 0, min(config.batch, source.num_samples("train")))
    with torch.no_grad():
        return classify(model.look_up(batch.ids), config.shape.num_rows, bounds)


def _log_every(steps: int) -> int:
    """Return how many steps lie between two lines of a log: each step is in one of about fifty."""
    most = max(1, steps // 50)
    return next(every for every in range(most, 0, -1) if steps % every == 0)


def compare(
    rank: int,
    send: Send,
    *,
    configs: Mapping[str, DlrmConfig],
    source: ClickSource,
    eval_every: int,
    eval_samples: int | None = None,
) -> None:
    """Train every configuration on this rank; rank 0 sends its progress and an ``Outcome`` each.

    Progress is (name, step, steps, word).
    """
    for name, config in configs.items():
        run = DlrmRun(config, source)

        def progress(step: int, steps: int, word: str, name: str = name) -> None:
            if rank == 0:
                send((name, step, steps, word))

        with RunLog(None) as log:
            schedule = Schedule(
                eval_every=eval_every,
                eval_samples=eval_samples,
                log_every=_log_every(config.steps),
            )
            metrics = train(run, schedule, log, progress)
        stats = run.exchange.stats_of_all_ranks()
        run.close()
        if rank == 0:
            directions = {
                "forward": (stats.forward, dict(stats.forward_times.read())),
                "backward": (stats.backward, dict(stats.backward_times.read())),
            }
            tables = dict(sorted(stats.tables.items()))
            send(Outcome(name, metrics.to_config(), log.lines, config.steps, directions, tables))
