"""Run several training jobs concurrently, each in its own processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Lock
from typing import TypeVar

ResultT = TypeVar("ResultT")
Setting = tuple[str, int]
"""The name of a setting and a seed."""
Progress = Callable[[int, int, str], None]


def train_all(
    wanted: Sequence[Setting],
    train: Callable[[str, int, Progress], ResultT],
    *,
    jobs: int,
    steps: int,
    progress: Progress,
    on_result: Callable[[Setting, ResultT], None],
) -> None:
    """Train every setting, several at a time.

    Args:
        wanted: the settings to train.
        train: called with name, seed and a callback for its own progress.
        jobs: training runs at the same time.
        steps: steps of each run.
        progress: called with (steps done, total steps, a word) over all runs.
        on_result: called with each setting and its result, as soon as it is done.

    Raises:
        Exception: an exception of a training run, after the runs in progress have ended.
    """
    counts, lock = [0] * len(wanted), Lock()

    def run(number: int) -> ResultT:
        name, seed = wanted[number]

        def show(step: int, _: int, word: str) -> None:
            with lock:
                counts[number] = step
                progress(sum(counts), steps * len(wanted), f"seed {seed}, {word}")

        return train(name, seed, show)

    with ThreadPoolExecutor(jobs) as pool:
        found = {pool.submit(run, number): setting for number, setting in enumerate(wanted)}
        try:
            for future in as_completed(found):
                on_result(found[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
