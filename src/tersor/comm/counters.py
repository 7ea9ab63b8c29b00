"""Bytes moved by collectives, and the time spent in each of their phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tersor.kernels.runtime.compile_notice import compile_seconds

PHASES: Final = ("encode", "sizes", "payload", "decode")
"""Phases of one collective of encoded tensors, in order."""


@dataclass(slots=True)
class Volume:
    """Bytes before and after encoding."""

    original_nbytes: int = 0
    encoded_nbytes: int = 0

    @property
    def ratio(self) -> float:
        """Original over encoded bytes; 1 if nothing was moved."""
        return self.original_nbytes / self.encoded_nbytes if self.encoded_nbytes else 1.0

    def add(self, other: Volume) -> None:
        """Add another volume to this one."""
        self.original_nbytes += other.original_nbytes
        self.encoded_nbytes += other.encoded_nbytes


class Stopwatch:
    """Accumulates the seconds of named phases; CUDA is timed by events, which only ``read`` waits for.

    Compilation in this process is excluded because it happens once. Waiting for a peer that compiles is
    included, so exchanges compile the kernels they can foresee when they are created.

    Args:
        seconds: totals to continue from, for every phase; zeros if None.
        phases: names of all phases.
    """

    def __init__(
        self, seconds: Mapping[str, float] | None = None, phases: Sequence[str] = PHASES
    ) -> None:
        begun = dict.fromkeys(phases, 0.0) if seconds is None else seconds
        self._seconds = {name: float(begun[name]) for name in phases}
        self._open: list[tuple[str, Any, Any, float]] = []

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Time the block, on the host or on the current stream of a CUDA device."""
        compiled_s = compile_seconds()
        if device.type != "cuda":
            begin = time.perf_counter()
            yield
            self._add(name, time.perf_counter() - begin, compile_seconds() - compiled_s)
            return
        start: Any = torch.cuda.Event(enable_timing=True)
        stop: Any = torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        stop.record()
        self._open.append((name, start, stop, compile_seconds() - compiled_s))
        self._settle()

    def _add(self, name: str, seconds: float, compiled_s: float) -> None:
        self._seconds[name] += max(0.0, seconds - compiled_s)

    def _settle(self) -> None:
        """Accumulate completed events, which bounds the length of the list."""
        while self._open and self._open[0][2].query():
            name, start, stop, compiled_s = self._open.pop(0)
            # the device idles while the host compiles
            self._add(name, start.elapsed_time(stop) / 1e3, compiled_s)

    @classmethod
    def slowest(cls, every: Sequence[Stopwatch]) -> Stopwatch:
        """Return a stopwatch with the longest time of each phase over several ranks, which have the same phases."""
        read = [one.read() for one in every]
        names = tuple(read[0]) if read else PHASES
        return cls({name: max((one[name] for one in read), default=0.0) for name in names}, names)

    def read(self) -> Mapping[str, float]:
        """Return the seconds of every phase; waits for phases still running on a device."""
        for _, _, stop, _ in self._open:
            stop.synchronize()
        self._settle()
        return dict(self._seconds)
