"""What is CUDA's own in a measurement, with a device that only writes down what it is asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tersor.bench.core import footprint, timing
from tersor.bench.core.ceiling import Ceiling, ceiling_of
from tersor.bench.core.footprint import count_launches, kernels_within, peak_memory
from tersor.bench.core.inputs import make_input
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.subject import Subject, copies_needed
from tersor.bench.core.timing import (
    Clocks,
    HostClock,
    LeadClock,
    LoopClock,
    clock_of,
    measure_interleaved,
)
from tersor.bench.core.trial import run_trial, time_trials
from tersor.bench.peers.memcpy import DeviceCopy

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class FakeClock:
    """Every call takes as many seconds as calls were made."""

    kind = "host"

    def __init__(self):
        self.count = 0

    def seconds(self, task):
        task()
        self.count += 1
        return float(self.count)


@pytest.fixture
def log(monkeypatch):
    """Replace the device by a list of what happens to it; the time between two events is 2 ms."""
    seen = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            seen.append("event")

        def synchronize(self):
            seen.append("wait")

        def elapsed_time(self, other):
            return 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    zeros = SimpleNamespace(sum=lambda: seen.append("read"))
    monkeypatch.setattr(timing.torch, "zeros", lambda *size, **options: zeros)
    properties = SimpleNamespace(L2_cache_size=2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return seen


def test_the_cache_is_emptied_before_the_first_event_and_the_second_is_waited_for(log):
    seconds = clock_of(CUDA).seconds(lambda: log.append("task"))
    assert seconds == 2e-3
    before, after = log[: log.index("task")], log[log.index("task") :]
    assert before == ["read"] * 32 + ["event"]
    assert after == ["task", "event", "wait"]
    log.clear()
    LeadClock(CUDA, lead_reads=5).seconds(lambda: log.append("task"))
    assert log[:7] == ["read"] * 5 + ["event", "task"]


def test_the_host_gets_more_time_to_queue_many_tensors(log):
    clock_of(CUDA, has_many_tensors=True).seconds(lambda: None)
    assert log.count("read") == 160


@pytest.mark.parametrize(("num_calls", "num_before"), [(4, 0), (2, 3)])
def test_a_loop_is_timed_from_an_idle_device_until_it_is_idle_again(
    num_calls, num_before, monkeypatch
):
    seen, now = [], iter([10.0, 11.0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: seen.append("wait"))

    def read():
        seen.append("clock")
        return next(now)

    monkeypatch.setattr(timing.time, "perf_counter", read)
    clock = LoopClock(CUDA, num_calls=num_calls, num_before=num_before)
    assert clock.seconds(lambda: seen.append("call")) == 1 / num_calls
    # calls before the loop are not timed
    before, timed = ["call"] * num_before, ["call"] * num_calls
    assert seen == [*before, "wait", "clock", *timed, "wait", "clock"]


def test_the_host_s_clock_is_for_the_host():
    assert isinstance(clock_of(CPU), HostClock)


def test_a_clock_that_is_given_takes_the_times():
    tasks = {"a": lambda: None, "b": lambda: None}
    times = measure_interleaved(tasks, device=CUDA, warmup=0, rounds=1, clock=FakeClock())
    assert (times["a"].p50, times["b"].p50) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("nbytes", "cache_nbytes", "num_copies"),
    [(64 * 2**20, 0, 1), (64 * 2**20, 50 * 2**20, 3), (2**30, 50 * 2**20, 1), (2**20, 2**26, 8)],
)
def test_copies_fill_the_cache_three_times_over(nbytes, cache_nbytes, num_copies):
    assert copies_needed(nbytes, cache_nbytes) == num_copies


def test_copies_are_checked_and_used_in_turn(monkeypatch):
    monkeypatch.setattr("tersor.bench.core.subject.cache_nbytes", lambda device: 2**16)
    subject = Subject.of(make_input("gradients", 2**16), None)
    assert len(subject.copies) == 3
    starts = [copy.slices[0].data_ptr() for copy in subject.copies]
    assert len(set(starts)) == 3
    trial = run_trial(DeviceCopy(), subject, threads=1)
    assert trial.worst_error == 0
    seen = []
    monkeypatch.setattr(
        DeviceCopy, "encode_all", lambda peer, xs, bounds: seen.append(xs[0].data_ptr())
    )
    encode = trial.tasks()["encode"]
    for _ in range(4):
        encode()
    assert seen == [starts[1], starts[2], starts[0], starts[1]]


def test_a_copy_that_decodes_wrongly_is_found(monkeypatch):
    monkeypatch.setattr("tersor.bench.core.subject.cache_nbytes", lambda device: 2**16)
    subject = Subject.of(make_input("gradients", 2**16), None)
    last = subject.copies[2].outs[0]
    copy = DeviceCopy.copy
    monkeypatch.setattr(
        DeviceCopy,
        "copy",
        lambda peer, x, out: out.zero_() if out is last else copy(peer, x, out),
    )
    assert run_trial(DeviceCopy(), subject, threads=1).worst_error > 0


def test_the_ceiling_is_timed_in_the_rounds_of_the_others():
    subject = Subject.of(make_input("gradients", 2**16), None)
    trial = run_trial(DeviceCopy(), subject, threads=1)
    ceiling = Ceiling(CPU, nbytes=2**16)
    (times,) = time_trials(
        [trial], device=CPU, rounds=1, warmup=0, ceiling=ceiling, clocks=Clocks(FakeClock())
    )
    assert times.copy_s is not None
    assert (times.copy_s.p50, times.memcpy_s.p50) == (1.0, 2.0)
    assert (times.encode_s.p50, times.decode_s.p50) == (3.0, 4.0)


def test_the_ceiling_is_a_row_and_there_is_none_on_the_cpu():
    row = Ceiling(CPU, nbytes=2**16).row(rounds=1, warmup=0, clocks=Clocks(FakeClock()))
    assert row.peer
    assert row.ratio == 1
    assert row.copy_s == row.encode_s
    assert ResultRow.from_config(row.to_config()) == row
    assert ceiling_of(CPU) is None


def event(name, start, end=None, device="CUDA"):
    time_range = SimpleNamespace(start=start, end=start if end is None else end)
    return SimpleNamespace(
        name=name, time_range=time_range, device_type=SimpleNamespace(name=device)
    )


def test_kernels_are_counted_by_task_and_copies_and_ranges_are_not():
    events = [
        event("encode", 0, 10, "CPU"),
        event("decode", 20, 30, "CPU"),
        event("encode", 1, 9),
        event("_pack_kernel", 2),
        event("_pack_kernel", 3),
        event("_unpack_kernel", 25),
        event("_stray_kernel", 15),
        event("Memcpy DtoH (Device -> Pinned)", 4),
        event("Memset (Device)", 5),
        event("aten::add", 6, 7, "CPU"),
    ]
    assert kernels_within(events, {"encode", "decode"}) == {"encode": 2, "decode": 1}


def test_a_profiler_that_sees_no_kernel_counts_nothing():
    assert kernels_within([event("encode", 0, 10, "CPU")], {"encode"}) == {}


def test_the_cpu_has_no_footprint():
    assert count_launches({"task": lambda: pytest.fail("ran")}, CPU) == {}
    with peak_memory(CPU) as peak:
        torch.zeros(100)
    assert peak.nbytes is None


def test_workspace_is_the_peak_beyond_what_was_allocated(monkeypatch):
    memory = SimpleNamespace(now=100, peak=0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: memory.now)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory.peak)
    monkeypatch.setattr(
        footprint.torch.cuda, "reset_peak_memory_stats", lambda device: setattr(memory, "peak", 0)
    )
    with peak_memory(CUDA) as peak:
        memory.peak = 170
    assert peak.nbytes == 70
