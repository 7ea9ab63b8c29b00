"""One candidate on one subject, which is checked before it is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
import torch
from msgspec import structs

from tersor.bench.core import machine
from tersor.bench.core.candidate import Candidate
from tersor.bench.core.footprint import count_launches, peak_memory
from tersor.bench.core.lead_times import LeadTimes
from tersor.bench.core.roundtrip import worst_error
from tersor.bench.core.subject import Copy, Subject
from tersor.bench.core.timing import (
    ClockKind,
    Clocks,
    Percentiles,
    Task,
    clocks_of,
    measure_interleaved,
)
from tersor.raw_bytes import as_bytes
from tersor.types import bound_share

SAMPLE_EVERY: Final = 7
"""Slow peers are timed on every 7th slice. 7 and the 26 embedding tables have no common factor, so the
sample covers tables of all sizes."""


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """One copy of a candidate's input and its encoded result.

    Attributes:
        xs: the slices, or their codes.
        outs: the output buffers of decoding.
        encoded: the encoded result of all slices.
    """

    xs: Sequence[torch.Tensor]
    outs: Sequence[torch.Tensor]
    encoded: Any


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was run once over the whole subject.

    Attributes:
        candidate: the candidate.
        threads: threads that it may use.
        places: the copies of the subject, used in turn.
        error_bounds: the absolute bound of every slice.
        worst_error: error of the slice that comes closest to breaking its bound, or the largest error
            if the candidate promises no bound.
        error_bound: the absolute bound of that slice; None if the candidate promises none.
        error_share: the largest error divided by its slice's bound, promised or not; infinite if a
            slice without a bound has an error.
        workspace_nbytes: device memory taken by the first encode and the first decode.
    """

    candidate: Candidate
    threads: int
    places: Sequence[BufferCopy]
    error_bounds: Sequence[float]
    worst_error: float
    error_bound: float | None
    error_share: float
    workspace_nbytes: Mapping[str, int] | None = None

    @property
    def broken(self) -> bool:
        """Whether an error exceeds the bound, or a plain copy has any error."""
        if self.error_bound is None:
            return self.candidate.exact and self.worst_error > 0
        return bound_share(self.worst_error, self.error_bound) > 1

    @property
    def is_refused(self) -> bool:
        """Whether our codec, a peer that got our codes, or a plain copy broke its promise."""
        candidate = self.candidate
        return self.broken and (not candidate.peer or candidate.on_codes or candidate.exact)

    @property
    def failure(self) -> str | None:
        """Why no speed may be reported, in words; a peer's broken bound only appears in its row."""
        if self.is_refused:
            promised = 0.0 if self.error_bound is None else self.error_bound
            return f"refused: error {self.worst_error:.9g} where {promised:.9g} was promised"
        if math.isinf(self.worst_error):
            return "left out: it lost values, or made NaN or infinities of them"
        return None

    @property
    def encoded_nbytes(self) -> int:
        """The size of all encoded slices."""
        return self.candidate.total_nbytes(self.places[0].encoded)

    @property
    def _stride(self) -> int:
        return SAMPLE_EVERY if self.candidate.slow else 1

    @property
    def sampled_fraction(self) -> float:
        """The share of the bytes that the timed tasks process."""
        xs = self.places[0].xs
        return sum(x.nbytes for x in xs[:: self._stride]) / max(1, sum(x.nbytes for x in xs))

    def encode(self, place: BufferCopy) -> Any:
        """Encode the timed slices of one copy."""
        xs, error_bounds = place.xs[:: self._stride], self.error_bounds[:: self._stride]
        with self._in_threads():
            return self.candidate.encode_all(xs, error_bounds)

    def decode(self, place: BufferCopy) -> Sequence[torch.Tensor]:
        """Decode the timed slices of one copy."""
        encoded = place.encoded[:: self._stride] if self.candidate.slow else place.encoded
        with self._in_threads():
            return self.candidate.decode_all(encoded, place.outs[:: self._stride])

    def _in_threads(self) -> AbstractContextManager[None]:
        """Set the number of CPU threads; skipped on a device, where the setting would cost 3 us."""
        return nullcontext() if self.places[0].xs[0].is_cuda else with_threads(self.threads)

    def copy(self, place: BufferCopy) -> None:
        """Copy the timed slices of one copy with one thread."""
        pairs = zip(place.xs[:: self._stride], place.outs[:: self._stride], strict=True)
        for x, out in pairs:
            if x.device.type == "cpu":
                np.copyto(as_bytes(out).numpy(), as_bytes(x).numpy())
            else:
                out.copy_(x)

    def row_values(self, subject: Subject, times: TrialTimes) -> dict[str, Any]:
        """Return the fields of this trial's result row, except its identity and its note."""
        on_codes = self.candidate.on_codes
        return {
            "original_nbytes": subject.nbytes,
            "encoded_nbytes": self.encoded_nbytes,
            "worst_error": None if on_codes else self.worst_error,
            "error_bound": None if on_codes else self.error_bound,
            "encode_s": times.encode_s,
            "decode_s": times.decode_s,
            # a copy of the codes moves a quarter of the bytes, so other rows' copies do not compare
            "memcpy_s": None if on_codes else times.memcpy_s,
            "copy_s": times.copy_s,
            "clock": times.clock,
            "lead": self._lead(times),
            "sampled_fraction": self.sampled_fraction,
            "peer": self.candidate.peer,
            "entropy_bits": subject.entropy_bits,
            "distinct_rows": subject.distinct_rows,
            "workspace_nbytes": self.workspace_nbytes,
            "versions": machine.versions(),
            "machine": machine.machine(subject.slices[0].device),
        }

    def _lead(self, times: TrialTimes) -> LeadTimes | None:
        on_codes = self.candidate.on_codes
        return structs.replace(times.lead, memcpy_s=None) if times.lead and on_codes else times.lead

    def tasks(self) -> dict[str, Task]:
        """Return a copy, an encode and a decode task, each of which cycles through the places.

        They start at different places, so no task finds data in the cache that the previous one left.
        """
        calls = enumerate((self.copy, self.encode, self.decode))
        return {call.__name__: partial(next, self._in_turn(call, first)) for first, call in calls}

    def _in_turn(self, call: Callable[[BufferCopy], object], first: int) -> Iterator[object]:
        return map(call, islice(cycle(self.places), first % len(self.places), None))


def run_trial(candidate: Candidate, subject: Subject, threads: int) -> Trial:
    """Encode and decode every copy of the subject once and find the worst error."""
    error_bounds = subject.error_bounds
    if candidate.on_codes:
        error_bounds = [0.0] * len(subject.codes)
    places, errors = [], [0.0] * len(error_bounds)
    workspace: dict[str, int] = {}
    for copy in subject.copies:
        place, decoded, taken = _run_place(candidate, copy, error_bounds, threads)
        found = [worst_error(x, y) for x, y in zip(place.xs, decoded, strict=True)]
        errors = [max(pair) for pair in zip(errors, found, strict=True)]
        workspace = workspace or taken
        places.append(place)
    pairs = zip(errors, error_bounds, strict=True)
    worst, bound = max(pairs, key=lambda pair: bound_share(*pair))
    share = bound_share(worst, bound)
    error, promised = (worst, bound) if candidate.bounded else (max(errors), None)
    return Trial(
        candidate, threads, places, error_bounds, error, promised, share, workspace or None
    )


def _run_place(
    candidate: Candidate, copy: Copy, error_bounds: Sequence[float], threads: int
) -> tuple[BufferCopy, Sequence[torch.Tensor], dict[str, int]]:
    """Encode and decode one copy; return it, the decoded slices and the device memory taken."""
    xs, outs = copy.slices, copy.outs
    if candidate.on_codes:
        xs = [candidate.prepare(one) for one in copy.codes]
        outs = [torch.zeros_like(x) for x in xs]
    else:
        # the buffers still hold the previous candidate's output; one that writes nothing must not pass
        for out in outs:
            out.fill_(torch.nan)
    device = xs[0].device
    with with_threads(threads):
        with peak_memory(device) as encoding:
            encoded = candidate.encode_all(xs, error_bounds)
        with peak_memory(device) as decoding:
            decoded = candidate.decode_all(encoded, outs)
    taken: dict[str, int] = {}
    if candidate.uses_torch_memory and encoding.nbytes is not None and decoding.nbytes is not None:
        taken = {"encode": encoding.nbytes, "decode": decoding.nbytes}
    return BufferCopy(xs, outs, encoded), decoded, taken


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """Seconds per pass over the timed slices, and of the device's copy in the same rounds.

    Attributes:
        clock: the kind of clock of all times except ``lead``.
    """

    clock: ClockKind
    encode_s: Percentiles
    decode_s: Percentiles
    memcpy_s: Percentiles
    copy_s: Percentiles | None
    lead: LeadTimes | None


def time_trials(
    trials: Sequence[Trial],
    *,
    device: torch.device,
    rounds: int,
    warmup: int = 1,
    ceiling: Task | None = None,
    clocks: Clocks | None = None,
) -> list[TrialTimes]:
    """Time all trials in turn, each right after a copy of the same slices.

    If there is a lead clock, everything except the ceiling is then timed again with it.

    Args:
        trials: trials that passed their checks.
        device: device on which they ran.
        rounds: timed rounds.
        warmup: untimed rounds before those.
        ceiling: a copy that measures the speed of the device's memory, timed once per round.
        clocks: the clocks; by default ``clocks_of(device)``.
    """
    own, lead = clocks_of(device) if clocks is None else clocks
    tasks: dict[str, Task] = {}
    for index, trial in enumerate(trials):
        tasks |= {f"{index} {name}": task for name, task in trial.tasks().items()}
    rest = {} if ceiling is None else {"ceiling": ceiling}
    measured = partial(measure_interleaved, device=device, rounds=rounds, warmup=warmup)
    times = measured({**rest, **tasks}, clock=own)
    lead_times = None if lead is None else measured(tasks, clock=lead)
    return [
        TrialTimes(
            clock=own.kind,
            copy_s=times.get("ceiling"),
            lead=None if lead_times is None else LeadTimes(**_times_of(lead_times, index)),
            **_times_of(times, index),
        )
        for index in range(len(trials))
    ]


def _times_of(times: Mapping[str, Percentiles], index: int) -> dict[str, Any]:
    """Return the times of one trial by field name."""
    return {
        "encode_s": times[f"{index} encode"],
        "decode_s": times[f"{index} decode"],
        "memcpy_s": times[f"{index} copy"],
    }


def launches_of(trials: Sequence[Trial], device: torch.device) -> list[dict[str, int] | None]:
    """Count the kernels that one encode and one decode of each trial launch.

    The count is None if the profiler reported none; it misses the kernels of some libraries.
    """
    tasks: dict[str, Task] = {}
    for index, trial in enumerate(trials):
        tasks[f"{index} encode"] = partial(trial.encode, trial.places[0])
        tasks[f"{index} decode"] = partial(trial.decode, trial.places[0])
    counts = count_launches(tasks, device)
    pairs = [(counts.get(f"{k} encode"), counts.get(f"{k} decode")) for k in range(len(trials))]
    return [
        None if encode is None or decode is None else {"encode": encode, "decode": decode}
        for encode, decode in pairs
    ]


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Set torch and our kernels to use ``count`` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
