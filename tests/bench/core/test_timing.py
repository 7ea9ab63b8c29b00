from __future__ import annotations

import gc
import math

import pytest
import torch

from tersor.bench.core import timing
from tersor.bench.core.timing import LoopClock, Percentiles, measure, measure_interleaved
from tersor.errors import SpecError

CPU = torch.device("cpu")


def test_percentiles_are_of_the_given_times():
    assert Percentiles.of([5.0, 1.0, 2.0, 4.0, 3.0, 6.0]) == Percentiles(2.0, 3.5, 5.0)
    assert Percentiles.of([7.0]) == Percentiles(7.0, 7.0, 7.0)


def test_tasks_run_in_turn_and_warm_up_rounds_are_not_counted():
    calls = []
    tasks = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = measure_interleaved(tasks, device=CPU, warmup=1, rounds=3)
    assert calls == ["a", "b"] * 4
    assert list(times) == ["a", "b"]


def test_times_are_positive_and_ordered():
    times = measure(lambda: sum(range(1000)), device=CPU, rounds=5)
    assert 0 < times.p20 <= times.p50 <= times.p80


def test_garbage_collection_is_off_while_timing_and_on_again_after_a_failure():
    seen = []

    def task():
        seen.append(gc.isenabled())
        if len(seen) == 2:
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        measure(task, device=CPU)
    assert seen == [False, False]
    assert gc.isenabled()


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"warmup": -1}])
def test_a_measurement_needs_a_round(wrong):
    with pytest.raises(SpecError):
        measure(lambda: None, device=CPU, **wrong)


def test_a_loop_is_not_sized_by_calls_that_prepare_later_ones(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    now = 0.0

    def task() -> None:
        nonlocal now
        now += next(durations, 0.001)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    durations = iter([0.02, 0.001, 0.05])
    clock = LoopClock(torch.device("cpu"), most_s=0.01)
    assert math.isclose(clock.seconds(task), 0.001)
    (count,) = clock._counts.values()
    # rounding may make it one less than the ten that take 10 ms
    assert count in (9, 10)
