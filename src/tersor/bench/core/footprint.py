"""What a call costs an accelerator besides time: kernel launches and memory."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tersor.bench.core.timing import Task

_NOT_KERNELS = ("Memcpy", "Memset")


@dataclass(slots=True)
class PeakMemory:
    """Peak memory allocated on a device inside a block, beyond what was allocated before it.

    ``nbytes`` is None on the CPU, and until the block has ended.
    """

    nbytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Track torch's allocator inside the block; allocations of other libraries are not counted."""
    peak = PeakMemory()
    if device.type != "cuda":
        yield peak
        return
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    torch.cuda.synchronize(device)
    peak.nbytes = torch.cuda.max_memory_allocated(device) - before


def count_launches(tasks: Mapping[str, Task], device: torch.device) -> dict[str, int]:
    """Run each task once and count the kernels it launches, except memory copies and fills.

    The result is empty on the CPU, and if the profiler sees no kernel at all, because profiling then
    does not work. All tasks share one profiler session, because starting and ending one takes far
    longer than the tasks.
    """
    if device.type != "cuda":
        return {}
    kinds = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=kinds, acc_events=True) as profiled:
        for name, task in tasks.items():
            with torch.profiler.record_function(name):
                task()
                torch.cuda.synchronize(device)
    return kernels_within(profiled.events() or (), tasks)


def kernels_within(events: Iterable[Any], names: Container[str]) -> dict[str, int]:
    """Count the kernels in a profiler's events that started within each range in ``names``."""
    events = list(events)
    ranges = [e for e in events if e.name in names and e.device_type.name == "CPU"]
    # the device's events include the ranges themselves, under their own names
    starts = [
        e.time_range.start
        for e in events
        if e.device_type.name == "CUDA"
        and e.name not in names
        and not e.name.startswith(_NOT_KERNELS)
    ]
    if not starts:
        return {}
    return {
        e.name: sum(e.time_range.start <= start <= e.time_range.end for start in starts)
        for e in ranges
    }
