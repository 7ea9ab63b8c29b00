"""The ``groups`` suite: fused operations in the form in which shards call them.

No time is reported before the bytes were compared with those of the reference in this process. All
operations of one size run in turn, each right after a memcpy of the float32 values. On CUDA, a large copy
is timed in the same rounds, and every operation is timed twice. The row's time is that of a loop of calls,
including the host's share; the other is the replay of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch

from tersor.bench.core import machine
from tersor.bench.core.footprint import count_launches, peak_memory
from tersor.bench.core.graphs import Replays
from tersor.bench.core.inputs import BenchInput
from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.core.rows import OperationRow, row_identity
from tersor.bench.core.subject import cache_nbytes, copies_needed
from tersor.bench.core.timing import (
    Clock,
    HostClock,
    LoopClock,
    Percentiles,
    Task,
    clock_of,
    measure_interleaved,
)
from tersor.bench.core.trial import with_threads
from tersor.bench.kernels.operations import SUITE
from tersor.bench.kernels.operations.calls import BufferSet, Call, bind
from tersor.bench.kernels.operations.plan import OPERATIONS
from tersor.codecs import registry
from tersor.errors import BackendUnavailableError


@dataclass(frozen=True, slots=True)
class OperationsRun:
    """What the suite measures, and how often.

    Attributes:
        names: keys of ``OPERATIONS``.
        device: device recorded in the rows; tensors are on the input's device.
        threads: thread counts on the CPU.
        rounds: timed rounds.
        warmup: untimed rounds before those.
        ceiling: a copy that measures the speed of the device's memory; None on the CPU.
    """

    names: Sequence[str]
    device: str
    threads: Sequence[int]
    rounds: int
    warmup: int
    ceiling: Task | None

    def measure(self, made: BenchInput, outcome: SuiteOutcome) -> None:
        """Check and time all operations on one input that have no row yet, and add their rows."""
        wanted = [
            (name, identity)
            for name in self.names
            for threads in self.threads
            if not outcome.is_done(identity := self._identity(name, made, threads))
        ]
        if not wanted:
            return
        values = made.slices[0].view(-1)
        device = values.device
        num_sets = copies_needed(values.nbytes, cache_nbytes(device))
        buffer_sets = [BufferSet(values), *(BufferSet(values.clone()) for _ in range(num_sets - 1))]
        trials = [
            trial
            for name, identity in wanted
            if (trial := _checked(name, identity, buffer_sets, outcome)) is not None
        ]
        if not trials:
            return
        clock = LoopClock(device) if device.type == "cuda" else HostClock()
        loops = self._loops(trials, buffer_sets, clock)
        graphs = self._graphs(trials, device)
        launches = count_launches({trial.key: trial.calls[0] for trial in trials}, device)
        for trial, (call_s, memcpy_s, copy_s), graph_s in zip(trials, loops, graphs, strict=True):
            outcome.add(
                OperationRow(
                    **trial.row_values(clock, graph_s),
                    encode_s=call_s,
                    decode_s=call_s,
                    memcpy_s=memcpy_s,
                    copy_s=copy_s,
                    num_launches={"call": launches[trial.key]} if trial.key in launches else None,
                )
            )

    def _identity(self, name: str, made: BenchInput, threads: int) -> dict[str, Any]:
        operation = OPERATIONS[name]
        return row_identity(
            suite=SUITE, codec=name, version=str(registry.get(f"group{operation.nbits}").version),
            spec=operation.to_config(), input=made.name, device=self.device,
            num_values=made.num_values, threads=threads,
        )  # fmt: skip

    def _loops(
        self, trials: Sequence[_Trial], buffer_sets: Sequence[BufferSet], clock: Clock
    ) -> list[tuple[Percentiles, Percentiles, Percentiles | None]]:
        """Time calls in a loop, each after a copy; return seconds of call, memcpy and ceiling."""
        tasks: dict[str, Task] = {} if self.ceiling is None else {"ceiling": self.ceiling}
        copies = [partial(_copy, buffers) for buffers in buffer_sets]
        for trial in trials:
            tasks[f"{trial.key} copy"] = _in_turn(copies, 0)
            # start at another buffer set, so that the call does not find the copy's data in the cache
            tasks[trial.key] = trial.in_threads(_in_turn(trial.calls, 1))
        times = self._times(tasks, clock)
        return [(times[t.key], times[f"{t.key} copy"], times.get("ceiling")) for t in trials]

    def _graphs(
        self, trials: Sequence[_Trial], device: torch.device
    ) -> Sequence[Percentiles | None]:
        """Time calls as CUDA graphs that the host queues ahead; each is None on the CPU."""
        if device.type != "cuda":
            return [None] * len(trials)
        tasks = {trial.key: _in_turn(trial.replays, 0) for trial in trials}
        times = self._times(tasks, clock_of(device))
        return [times[trial.key] for trial in trials]

    def _times(self, tasks: dict[str, Task], clock: Clock) -> dict[str, Percentiles]:
        device, rounds, warmup = torch.device(self.device), self.rounds, self.warmup
        return measure_interleaved(tasks, device=device, rounds=rounds, warmup=warmup, clock=clock)


@dataclass(frozen=True, slots=True)
class _Trial:
    """An operation that produced the reference's bytes in every buffer set."""

    identity: dict[str, Any]
    calls: Sequence[Call]
    replays: Sequence[Task]
    workspace_nbytes: dict[str, int] | None

    @property
    def key(self) -> str:
        return f"{self.identity['codec']} {self.identity['threads']}"

    def in_threads(self, task: Task) -> Task:
        """Wrap a task to use the row's number of threads; on CUDA, return it unchanged."""
        if self.calls[0].output.is_cuda:
            return task

        def run() -> None:
            with with_threads(self.identity["threads"]):
                task()

        return run

    def row_values(self, clock: Clock, graph_s: Percentiles | None) -> dict[str, Any]:
        """Return the fields of the row except the times of the loop."""
        call, device = self.calls[0], self.calls[0].output.device
        num_calls = clock.num_calls if isinstance(clock, LoopClock) else 1
        looped = f"mean wall time of {num_calls} calls in a row, with the host's share"
        return {
            **self.identity,
            "original_nbytes": 4 * self.identity["num_values"],
            "encoded_nbytes": call.coded_nbytes,
            "worst_error": None,
            "error_bound": None,
            "clock": clock.kind,
            "operation": call.cost(num_calls, graph_s),
            "workspace_nbytes": self.workspace_nbytes,
            "note": looped if num_calls > 1 else "",
            "versions": machine.versions(),
            "machine": machine.machine(device),
        }


def _checked(
    name: str, identity: dict[str, Any], buffer_sets: Sequence[BufferSet], outcome: SuiteOutcome
) -> _Trial | None:
    """Compare an operation with the reference in every buffer set, both called and replayed."""
    size = f"{buffer_sets[0].values.nbytes / 2**20:.0f} MiB"
    try:
        with with_threads(identity["threads"]):
            calls = [bind(OPERATIONS[name], buffers) for buffers in buffer_sets]
            calls[0]()
            with peak_memory(calls[0].output.device) as taken:
                calls[0]()
            replays = [partial(Replays().call, name, [call.output], call) for call in calls]
            is_right = all(
                call.is_right(call) and (not call.output.is_cuda or call.is_right(replay))
                for call, replay in zip(calls, replays, strict=True)
            )
    except (BackendUnavailableError, torch.OutOfMemoryError) as error:
        outcome.note(f"{name} is left out: {str(error).splitlines()[0]}")
        return None
    if not is_right:
        sentence = f"{name} on {size} is refused: its bytes are not those of the reference"
        outcome.refusals.append(sentence)
        outcome.note(sentence)
        return None
    return _Trial(
        identity, calls, replays, None if taken.nbytes is None else {"call": taken.nbytes}
    )


def _in_turn(tasks: Sequence[Callable[[], object]], first: int) -> Task:
    """Return a task that runs the next of several tasks each time, starting at index ``first``."""
    order: Iterator[Callable[[], object]] = islice(cycle(tasks), first % len(tasks), None)

    def run() -> None:
        next(order)()

    return run


def _copy(buffers: BufferSet) -> None:
    """Copy the float32 values with one thread."""
    if buffers.values.device.type == "cpu":
        np.copyto(buffers.copied.numpy(), buffers.values.numpy())
    else:
        buffers.copied.copy_(buffers.values)
