"""Time measurement for all benchmarks: warm-up, interleaved rounds, percentiles."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol

import numpy as np
import torch
from msgspec import Meta, Struct

from tersor.errors import SpecError

Task = Callable[[], object]
Seconds = Annotated[float, Meta(ge=0)]
ClockKind = Literal["host", "loop", "lead"]
"""How a time was measured.

``"host"``: by the host until the call returned. ``"loop"``: by the host around consecutive calls until the
device was idle. ``"lead"``: by events on a device that was busy while the host queued the call.
"""


class Percentiles(Struct, frozen=True, forbid_unknown_fields=True):
    """The 20th, 50th and 80th percentile of the measured seconds per call."""

    p20: Seconds
    p50: Seconds
    p80: Seconds

    @classmethod
    def of(cls, seconds: list[float]) -> Percentiles:
        """Summarise the times of the rounds; there must be at least one."""
        p20, p50, p80 = np.percentile(seconds, (20, 50, 80))
        return cls(float(p20), float(p50), float(p80))


class Clock(Protocol):
    """Times one call."""

    kind: ClassVar[ClockKind]

    def seconds(self, task: Task) -> float:
        """Run ``task`` and return the seconds it took."""


class HostClock:
    """The host's clock, for work that is complete when the call returns.

    Freeing the result is not timed.
    """

    kind: ClassVar[ClockKind] = "host"

    def seconds(self, task: Task) -> float:
        """See ``Clock.seconds``."""
        begin = time.perf_counter()
        result = task()
        seconds = time.perf_counter() - begin
        del result
        return seconds


_LONG_LEAD_READS: Final = 160
"""Reads that keep an H200 busy for 9 ms before a call on many tensors.

The host takes 1 to 3 ms to queue such a call. A training step hides this time, because there the host runs
ahead of the device.
"""


_LOOP_S: Final = 0.01
"""Duration of a loop: its overhead of 25 us is 0.25 %, and ten rounds of 46 candidates take 15 s."""


_SIZING_CALLS: Final = 5
"""Calls that size a loop. One of the first calls of a form is captured as a graph, which takes as long as a whole loop."""


class LeadClock:
    """Events on the current stream, with the L2 cache flushed first; freeing a result is not timed.

    Before the first event, the device repeatedly reads memory several times as large as its L2 cache
    (7.7 GB on an H200, 1.8 ms at its copy speed). This evicts the task's data from the cache and lets
    the host queue ahead for as long. The host's launch time then counts only where the device waits for
    the host, as in a training step. After a point where the host waits for the device, all of it counts.
    """

    kind: ClassVar[ClockKind] = "lead"
    _LEAD_CACHES: Final = 4

    def __init__(self, device: torch.device, lead_reads: int = 32) -> None:
        """Allocate the memory that is read ``lead_reads`` times before each call."""
        self._lead_reads = lead_reads
        cache_nbytes = torch.cuda.get_device_properties(device).L2_cache_size
        num_values = max(1, self._LEAD_CACHES * cache_nbytes // 4)
        self._lead = torch.zeros(num_values, dtype=torch.float32, device=device)

    def seconds(self, task: Task) -> float:
        """See ``Clock.seconds``."""
        start: Any = torch.cuda.Event(enable_timing=True)
        stop: Any = torch.cuda.Event(enable_timing=True)
        for _ in range(self._lead_reads):
            self._lead.sum()
        start.record()
        result = task()
        stop.record()
        stop.synchronize()
        del result
        return float(start.elapsed_time(stop)) / 1e3


class LoopClock:
    """Wall time of consecutive calls as a user's loop sees them, including the host's share.

    The device is synchronised before the first call and after the last one. A call takes as long as the
    slower of host and device. Starting and synchronising take about 25 us, spread over all calls. Each
    call's result is dropped, as in a loop.
    """

    kind: ClassVar[ClockKind] = "loop"

    def __init__(
        self,
        device: torch.device,
        num_calls: int = 128,
        most_s: float = math.inf,
        num_before: int = 0,
    ) -> None:
        """Average over ``num_calls`` calls, or fewer if they would exceed ``most_s``; at least one.

        ``num_before`` calls go before each loop and are not timed: they leave caches and allocators as the same call
        leaves them, not as another task did.
        """
        self._device, self.num_calls, self._most_s = device, num_calls, most_s
        self._num_before = num_before
        self._counts: dict[Task, int] = {}

    def seconds(self, task: Task) -> float:
        """See ``Clock.seconds``; with a finite ``most_s``, a new task gets extra calls to size loops."""
        if task not in self._counts:
            self._counts[task] = self._count(task)
        return self._mean_s(task, self._counts[task])

    def _count(self, task: Task) -> int:
        if math.isinf(self._most_s):
            return self.num_calls
        shortest_s = min(self._mean_s(task, 1) for _ in range(_SIZING_CALLS))
        lasting = int(self._most_s / max(shortest_s, 1e-9))
        return max(1, min(self.num_calls, lasting))

    def _mean_s(self, task: Task, num_calls: int) -> float:
        for _ in range(self._num_before):
            task()
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        for _ in range(num_calls):
            task()
        torch.cuda.synchronize(self._device)
        return (time.perf_counter() - begin) / num_calls


def clock_of(device: torch.device, *, has_many_tensors: bool = False) -> Clock:
    """Return the clock for single calls on tensors of ``device``; a ``LeadClock`` on CUDA."""
    if device.type != "cuda":
        return HostClock()
    return LeadClock(device, _LONG_LEAD_READS) if has_many_tensors else LeadClock(device)


class Clocks(NamedTuple):
    """The clocks of a row: one for its own times and, on CUDA, one that lets the host queue ahead."""

    own: Clock
    lead: Clock | None = None


def clocks_of(device: torch.device, *, has_many_tensors: bool = False) -> Clocks:
    """Return the clocks for calls in a loop; a loop lasts up to 10 ms, or one call if that is longer."""
    clock = clock_of(device, has_many_tensors=has_many_tensors)
    if device.type != "cuda":
        return Clocks(clock)
    return Clocks(LoopClock(device, most_s=_LOOP_S), clock)


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
    tasks: Mapping[str, Task],
    *,
    device: torch.device,
    warmup: int = 1,
    rounds: int = 7,
    clock: Clock | None = None,
) -> dict[str, Percentiles]:
    """Time several tasks in turn, round after round.

    If the machine slows down for some seconds, it slows all tasks alike. Quotients of the results are
    therefore meaningful even if the absolute times are not.

    Args:
        tasks: tasks by name, called in this order in every round.
        device: device on which the tasks compute.
        warmup: rounds that are run but not counted.
        rounds: rounds that are counted, at least 1.
        clock: the clock; by default ``clock_of(device)``.

    Returns:
        Seconds per call by task name.
    """
    if rounds < 1 or warmup < 0:
        raise SpecError(f"rounds must be at least 1 and warmup at least 0, not {rounds}, {warmup}")
    clock = clock or clock_of(device)
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    with _no_garbage_collection():
        for _ in range(warmup + rounds):
            for name, task in tasks.items():
                seconds[name].append(clock.seconds(task))
    return {name: Percentiles.of(times[warmup:]) for name, times in seconds.items()}


def measure(
    task: Task,
    *,
    device: torch.device,
    warmup: int = 1,
    rounds: int = 7,
    clock: Clock | None = None,
) -> Percentiles:
    """Time one task alone; see ``measure_interleaved``."""
    times = measure_interleaved(
        {"": task}, device=device, warmup=warmup, rounds=rounds, clock=clock
    )
    return times[""]


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a stream that is not the default one.

    Some libraries take the default stream's handle, 0, to mean that no stream was given.
    """
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        yield
