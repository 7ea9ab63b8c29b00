"""The one way benchmarks measure time: warm-up, interleaved rounds, percentiles."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tersor.errors import SpecError

Task = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 20th, 50th and 80th percentile of the measured seconds per call."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, seconds: list[float]) -> Percentiles:
        """Summarise the times of the rounds; there must be at least one."""
        p20, p50, p80 = np.percentile(seconds, (20, 50, 80))
        return cls(float(p20), float(p50), float(p80))

    def to_config(self) -> dict[str, float]:
        """Return the JSON form."""
        return {"p20": self.p20, "p50": self.p50, "p80": self.p80}

    @classmethod
    def from_config(cls, config: Any) -> Percentiles:
        """Rebuild from the JSON form; anything unexpected raises ``SpecError``."""
        if not isinstance(config, Mapping) or set(config) != {"p20", "p50", "p80"}:
            raise SpecError("percentiles must have exactly 'p20', 'p50' and 'p80'")
        return cls(**config)


def time_call(task: Task, device: torch.device) -> float:
    """Return the seconds one call takes on ``device``; freeing its result is not counted.

    On CUDA the time between two events on the current stream is taken, so work queued earlier does
    not count and the host's launch overhead counts only where the device waits for it.
    """
    if device.type == "cuda":
        start: Any = torch.cuda.Event(enable_timing=True)
        stop: Any = torch.cuda.Event(enable_timing=True)
        start.record()
        result = task()
        stop.record()
        stop.synchronize()
        del result
        return float(start.elapsed_time(stop)) / 1e3
    begin = time.perf_counter()
    result = task()
    seconds = time.perf_counter() - begin
    del result
    return seconds


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def measure_interleaved(
    tasks: Mapping[str, Task], *, device: torch.device, warmup: int = 1, rounds: int = 7
) -> dict[str, Percentiles]:
    """Time several tasks in turn, round after round.

    A machine that slows down for some seconds then slows all tasks alike, so quotients of the
    results mean something even where the absolute times do not.

    Args:
        tasks: called in this order in every round.
        device: where the tasks compute.
        warmup: rounds that are run but not counted.
        rounds: rounds that are counted, at least 1.

    Returns:
        Seconds per call, under the names of the tasks.
    """
    if rounds < 1 or warmup < 0:
        raise SpecError(f"rounds must be at least 1 and warmup at least 0, not {rounds}, {warmup}")
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    with _no_garbage_collection():
        for _ in range(warmup):
            for task in tasks.values():
                time_call(task, device)
        for _ in range(rounds):
            for name, task in tasks.items():
                seconds[name].append(time_call(task, device))
    return {name: Percentiles.of(times) for name, times in seconds.items()}


def measure(task: Task, *, device: torch.device, warmup: int = 1, rounds: int = 7) -> Percentiles:
    """Time one task alone; see ``measure_interleaved``."""
    return measure_interleaved({"": task}, device=device, warmup=warmup, rounds=rounds)[""]
