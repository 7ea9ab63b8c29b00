"""Extract how long ranks compute from the log of a training run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tersor.errors import SpecError

_Span = tuple[int, int, float]
"""The steps after the first number up to and including the second, and their mean seconds."""


class _Run(msgspec.Struct):
    """A run starts or resumes from a checkpoint; later steps of a killed run are repeated."""

    step: int


class _Train(msgspec.Struct):
    step: int
    step_s: float


class _Direction(msgspec.Struct):
    seconds: dict[str, float]


class _Exchange(msgspec.Struct):
    """The totals of all exchanges up to a step."""

    step: int
    num_exchanges: int
    forward: _Direction
    backward: _Direction


_KINDS: Final = {"run": _Run, "train": _Train, "exchange": _Exchange}
"""The kinds of lines about steps and exchanges; all other lines are ignored."""


def computing_s(path: str | os.PathLike[str], lines: Iterable[Any] | None = None) -> float:
    """Return the mean seconds of a step without its exchanges, from the log of a run.

    If the run was resumed, repeated steps count only once, with their last times. The result includes
    the all-reduce of dense gradients. It excludes the compilation of kernels, which a log does not
    include in the times of steps or exchanges.

    Args:
        path: path of ``log.jsonl``, or the name of the log in errors.
        lines: the parsed lines of the log, in order; None to read them from ``path``.

    Raises:
        SpecError: the log does not cover a whole training run from its first step to its last, its
            steps do not increase, or they are shorter than their exchanges.
    """
    if lines is None:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    spans: list[_Span] = []
    position, end = 0, None
    for line in _parsed(lines, path):
        if isinstance(line, _Run):
            spans = [span for span in spans if span[1] <= line.step]
        elif line.step < position + isinstance(line, _Train):
            raise SpecError(
                f"{path} has step {line.step} after {position}; give the log of one training, whose "
                "steps grow from 1"
            )
        elif isinstance(line, _Train):
            spans.append((position, line.step, line.step_s))
        position, end = line.step, line if isinstance(line, _Exchange) else None
    if end is None:
        raise SpecError(
            f"{path} is of a training that has not ended; go on with it by --resume, or make one with "
            "tersor train dlrm --run-dir DIR --log-every N, N a divisor of --steps"
        )
    _check_whole(path, spans, end)
    whole_s = sum((last - first) * seconds for first, last, seconds in spans)
    exchanges_s = sum([*end.forward.seconds.values(), *end.backward.seconds.values()])
    if exchanges_s > whole_s:
        raise SpecError(
            f"the exchanges of {path} take longer than its steps ({exchanges_s:.3g} s of "
            f"{whole_s:.3g} s); train anew"
        )
    return (whole_s - exchanges_s) / end.step


def samples_per_rank(path: str | os.PathLike[str]) -> float | None:
    """Return the samples per rank and step of a training run, or None if its log does not say."""
    with Path(path).open(encoding="utf-8") as file:
        try:
            first = json.loads(file.readline())
            return float(first["config"]["batch"] / first["ranks"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None


def _parsed(
    lines: Iterable[Any], path: str | os.PathLike[str]
) -> Iterator[_Run | _Train | _Exchange]:
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line) if isinstance(line, str) else line
            kind = _KINDS.get(values["kind"])
            if kind is not None:
                yield msgspec.convert(values, kind)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise SpecError(f"line {number} of {path} is not of a training's log.jsonl") from error


def _check_whole(path: str | os.PathLike[str], spans: list[_Span], end: _Exchange) -> None:
    """Reject a log whose step times or exchanges do not cover all steps up to its end."""
    covered = 0
    for first, last, _ in [*spans, (end.step, end.step, 0.0)]:
        # a line about the steps after a checkpoint must not count for those before it
        if first > covered:
            steps = f"step {first}" if first == covered + 1 else f"steps {covered + 1} to {first}"
            raise SpecError(
                f"{path} tells no times of its {steps}; train anew with --log-every N, N a divisor of "
                "--steps and --checkpoint-every"
            )
        covered = last
    if end.num_exchanges != end.step:
        raise SpecError(
            f"{path} counts the exchanges of {end.num_exchanges} of its {end.step} steps, as it "
            "went on from a checkpoint that does not know the others; train anew"
        )
