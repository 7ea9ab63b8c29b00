"""One candidate on one subject: checked first, then ready to be timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from tersor.bench.candidate import Candidate
from tersor.bench.roundtrip import quotient, worst_error
from tersor.bench.subject import Subject
from tersor.bench.timing import Percentiles, Task, measure_interleaved

SAMPLE_EVERY: Final = 7
"""Slow peers are timed on every 7th slice: 7 and the 26 embedding tables have no common factor, so
the sample meets tables of all sizes."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was run once over the whole subject.

    Attributes:
        encoded: all slices, encoded.
        worst_error: of the slice that comes closest to breaking its bound, or the largest of all
            where no bound was given.
        error_bound: the absolute bound of that slice.
    """

    candidate: Candidate
    threads: int
    xs: Sequence[torch.Tensor]
    outs: Sequence[torch.Tensor]
    error_bounds: Sequence[float]
    encoded: Sequence[Any]
    worst_error: float
    error_bound: float | None

    @property
    def broken(self) -> bool:
        """Whether an error above the bound was found."""
        return self.error_bound is not None and quotient(self.worst_error, self.error_bound) > 1

    @property
    def encoded_nbytes(self) -> int:
        """Bytes of all encoded slices."""
        return sum(self.candidate.nbytes(one) for one in self.encoded)

    @property
    def _stride(self) -> int:
        return SAMPLE_EVERY if self.candidate.slow else 1

    @property
    def sampled_fraction(self) -> float:
        """Share of the bytes that the tasks work on."""
        timed_nbytes = sum(x.nbytes for x in self.xs[:: self._stride])
        return timed_nbytes / max(1, sum(x.nbytes for x in self.xs))

    def encode(self) -> Sequence[Any]:
        """Encode the timed slices."""
        xs, error_bounds = self.xs[:: self._stride], self.error_bounds[:: self._stride]
        with _threads(self.threads):
            return self.candidate.encode_all(xs, error_bounds)

    def decode(self) -> Sequence[torch.Tensor]:
        """Decode the timed slices."""
        encoded, outs = self.encoded[:: self._stride], self.outs[:: self._stride]
        with _threads(self.threads):
            return self.candidate.decode_all(encoded, outs)

    def copy(self) -> None:
        """Copy the timed slices with one thread."""
        pairs = zip(self.xs[:: self._stride], self.outs[:: self._stride], strict=True)
        for x, out in pairs:
            if x.device.type == "cpu":
                np.copyto(out.numpy(), x.numpy())
            else:
                out.copy_(x)


def run_trial(candidate: Candidate, subject: Subject, threads: int) -> Trial:
    """Encode and decode the whole subject once and find the worst error."""
    if candidate.on_codes:
        xs = [candidate.prepare(one) for one in subject.codes]
        outs: Sequence[torch.Tensor] = [torch.zeros_like(x) for x in xs]
        error_bounds: Sequence[float] = [0.0] * len(xs)
    else:
        xs, outs, error_bounds = list(subject.slices), subject.outs, subject.error_bounds
        # the memory holds what the last candidate decoded: one that writes nothing must not pass
        for out in outs:
            out.fill_(torch.nan)
    with _threads(threads):
        encoded = candidate.encode_all(xs, error_bounds)
        decoded = candidate.decode_all(encoded, outs)
    errors = [worst_error(x, y) for x, y in zip(xs, decoded, strict=True)]
    if candidate.bounded:
        pairs = zip(errors, error_bounds, strict=True)
        worst, bound = max(pairs, key=lambda pair: quotient(*pair))
    else:
        worst, bound = max(errors), None
    return Trial(candidate, threads, xs, outs, error_bounds, encoded, worst, bound)


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """Seconds per pass over the timed slices."""

    encode_s: Percentiles
    decode_s: Percentiles
    memcpy_s: Percentiles


def time_trials(trials: Sequence[Trial], *, device: torch.device, rounds: int) -> list[TrialTimes]:
    """Time all trials in turn, each right after a copy of the same slices."""
    tasks: dict[str, Task] = {}
    for index, trial in enumerate(trials):
        tasks[f"{index} copy"] = trial.copy
        tasks[f"{index} encode"] = trial.encode
        tasks[f"{index} decode"] = trial.decode
    times = measure_interleaved(tasks, device=device, rounds=rounds)
    return [
        TrialTimes(times[f"{i} encode"], times[f"{i} decode"], times[f"{i} copy"])
        for i in range(len(trials))
    ]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
