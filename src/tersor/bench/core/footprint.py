"""What a call costs an accelerator besides time: kernels started and memory taken."""

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
    """The most memory that was allocated on a device inside a block, beyond what was before it.

    ``nbytes`` is None on the CPU, and before the block has ended.
    """

    nbytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Watch torch's allocator inside the block; what other libraries allocate is not seen."""
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
    """Run each task once and count the kernels it started, without copies and fills of memory.

    Returns nothing on the CPU, and where the profiler sees no kernel at all: it then cannot look.
    One session for all tasks, as starting and ending one takes far longer than the tasks.
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
    """Count a profiler's kernels that ran within each of the ranges that have ``names``."""
    events = list(events)
    ranges = [e for e in events if e.name in names and e.device_type.name == "CPU"]
    # a range is shown on the device too, under its own name
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
