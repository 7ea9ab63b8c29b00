"""How long ranks compute, from the log of a training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tersor.errors import SpecError

_Span = tuple[int, int, float]
"""Steps after the first number, up to the second, and the mean seconds of one of them."""


def computing_s(path: str | os.PathLike[str]) -> float:
    """Return the mean seconds of a step without its exchanges, from ``log.jsonl`` of a run.

    See ``computing_of``.
    """
    return computing_of(_parsed(path), path)


def computing_of(lines: Iterable[Any], path: str | os.PathLike[str]) -> float:
    """Return the mean seconds of a step without its exchanges, from the lines of a run's log.

    A run may have been resumed: steps that were taken again count as they were last. The all-reduce
    of dense gradients is part of it. Compiling kernels is not: neither the steps nor the exchanges of
    a log have it in their times.

    Args:
        lines: of the log, in order.
        path: what an error calls it.

    Raises:
        SpecError: the log holds no whole training, from its first step to its last, or steps that
            do not grow, or that are shorter than their exchanges.
    """
    spans: list[_Span] = []
    position, end = 0, None
    for line in _told(lines, path):
        kind, step = line["kind"], line["step"]
        if kind == "run":
            # it begins, or goes on from a checkpoint: later steps of a killed run are taken again
            spans = [span for span in spans if span[1] <= step]
            position, end = step, None
        elif kind == "train":
            _check_growth(path, position, step, position + 1)
            spans.append((position, step, line["seconds"]))
            position, end = step, None
        elif kind == "exchange":
            _check_growth(path, position, step, position)
            position, end = step, line
    if end is None:
        raise SpecError(
            f"{path} is of a training that has not ended; go on with it by --resume, or make one with "
            "tersor train dlrm --run-dir DIR --log-every N, N a divisor of --steps"
        )
    _check_whole(path, spans, end)
    whole_s = sum((last - first) * seconds for first, last, seconds in spans)
    if end["seconds"] > whole_s:
        raise SpecError(
            f"the exchanges of {path} take longer than its steps ({end['seconds']:.3g} s of "
            f"{whole_s:.3g} s); train anew"
        )
    return float((whole_s - end["seconds"]) / end["step"])


def samples_per_rank(path: str | os.PathLike[str]) -> float | None:
    """Return the samples of each rank in a step of a training; None where its log does not say."""
    with Path(path).open(encoding="utf-8") as file:
        try:
            first = json.loads(file.readline())
            return float(first["config"]["batch"] / first["ranks"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None


def _parsed(path: str | os.PathLike[str]) -> Iterator[Any]:
    for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            yield json.loads(text)
        except ValueError as error:
            raise SpecError(f"line {number} of {path} is not of a training's log.jsonl") from error


def _told(lines: Iterable[Any], path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines that tell of steps and exchanges; ``seconds`` of a step, or of all exchanges."""
    for number, values in enumerate(lines, start=1):
        try:
            kind = values["kind"]
            if kind not in ("run", "train", "exchange"):
                continue
            line: dict[str, Any] = {"kind": kind, "step": int(values["step"])}
            if kind == "train":
                line["seconds"] = float(values["step_s"])
            elif kind == "exchange":
                both = (values[direction]["seconds"] for direction in ("forward", "backward"))
                line["num_exchanges"] = int(values["num_exchanges"])
                line["seconds"] = sum(float(s) for phases in both for s in phases.values())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(f"line {number} of {path} is not of a training's log.jsonl") from error
        yield line


def _check_growth(path: str | os.PathLike[str], position: int, step: int, least: int) -> None:
    if step < least:
        raise SpecError(
            f"{path} has step {step} after {position}; give the log of one training, whose steps "
            "grow from 1"
        )


def _check_whole(path: str | os.PathLike[str], spans: list[_Span], end: Mapping[str, Any]) -> None:
    """Refuse a log whose step times or exchanges are not of all steps up to its end."""
    covered = 0
    for first, last, _ in [*spans, (end["step"], end["step"], 0.0)]:
        # a line of steps after a checkpoint must not stand for those before it
        if first > covered:
            steps = f"step {first}" if first == covered + 1 else f"steps {covered + 1} to {first}"
            raise SpecError(
                f"{path} tells no times of its {steps}; train anew with --log-every N, N a divisor of "
                "--steps and --checkpoint-every"
            )
        covered = last
    if end["num_exchanges"] != end["step"]:
        raise SpecError(
            f"{path} counts the exchanges of {end['num_exchanges']} of its {end['step']} steps, as it "
            "went on from a checkpoint that does not know the others; train anew"
        )
