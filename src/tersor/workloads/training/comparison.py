"""Trainings with several settings on local rank processes, alone or as pairs with a common seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tersor.workloads.ranks import run_local_ranks
from tersor.workloads.training.judgement import Outcome, Pair
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Progress, Schedule, train
from tersor.workloads.training.run import TrainingRun

MakeRun = Callable[[], TrainingRun[Any, Any]]
"""Creates a run on every rank; must be picklable, like ``functools.partial`` of a class."""


def train_each(
    rank: int,
    send: Callable[[Any], None],
    *,
    settings: Mapping[str, MakeRun],
    eval_every: int,
    eval_samples: int | None = None,
) -> None:
    """Train with every setting on this rank; rank 0 sends its progress, and an ``Outcome`` per setting.

    Progress is a tuple (name, step, total steps, text).
    """
    for name, make_run in settings.items():
        run = make_run()

        def progress(step: int, steps: int, word: str, name: str = name) -> None:
            if rank == 0:
                send((name, step, steps, word))

        with RunLog(None) as log:
            schedule = Schedule(
                eval_every=eval_every,
                eval_samples=eval_samples,
                log_every=_log_every(run.config.steps),
            )
            metrics = train(run, schedule, log, progress)
        outcome = run.outcome(name, metrics, log.lines)
        run.close()
        if rank == 0:
            send(outcome)


def _log_every(steps: int) -> int:
    """Return the log interval that divides ``steps`` and gives at least about fifty lines."""
    most = max(1, steps // 50)
    return next(every for every in range(most, 0, -1) if steps % every == 0)


def train_settings(
    settings: Mapping[str, MakeRun],
    *,
    ranks: int,
    eval_every: int,
    eval_samples: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train with every setting, one after the other; return the ``Outcome`` of each by name.

    Args:
        settings: functions that create the runs, by name.
        ranks: number of processes that train together.
        eval_every: steps between evaluations.
        eval_samples: test samples per evaluation; all if None.
        progress: called with the steps done, the total over all settings, and a short text.
    """
    names, outcomes = list(settings), {}

    def receive(rank: int, message: Any) -> None:
        del rank
        if isinstance(message, Outcome):
            outcomes[message.name] = message
        elif progress is not None:
            name, step, total, word = message
            progress(step + total * names.index(name), total * len(names), f"{name}, {word}")

    options = {"settings": settings, "eval_every": eval_every, "eval_samples": eval_samples}
    run_local_ranks(train_each, ranks, options, receive)
    return outcomes


def train_pairs(
    settings: Callable[[int], Mapping[str, MakeRun]],
    seeds: Sequence[int],
    *,
    ranks: int,
    eval_every: int,
    progress: Progress | None = None,
) -> Iterator[Pair[Any]]:
    """Train every seed with two settings; yield each pair when it is complete.

    Args:
        settings: returns the two settings for a seed, the baseline first.
        seeds: of the pairs.
        ranks: number of processes that train together.
        eval_every: steps between evaluations.
        progress: called with the steps done, the total over a pair, and a short text.
    """
    for seed in seeds:

        def show(step: int, steps: int, word: str, seed: int = seed) -> None:
            if progress is not None:
                progress(step, steps, f"seed {seed}, {word}")

        found = train_settings(settings(seed), ranks=ranks, eval_every=eval_every, progress=show)
        first, second = found.values()
        yield Pair(seed, first, second)
