"""How long ranks compute, from the log of a training."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tersor.errors import SpecError


def computing_s(path: str | os.PathLike[str]) -> float:
    """Return the mean seconds of a step without its exchanges, from ``log.jsonl`` of a run.

    The all-reduce of dense gradients is part of it. Compiling kernels in the first steps counts on
    both sides, and so not at all.

    Raises:
        SpecError: the log holds no whole training, from its first step to its last, or steps that
            do not grow, or that are shorter than their exchanges.
    """
    steps: list[tuple[int, float]] = []
    num_exchanges, exchange_s = 0, 0.0
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            if values["kind"] == "train":
                steps.append((int(values["step"]), float(values["step_s"])))
            elif values["kind"] == "exchange":
                num_exchanges = int(values["num_exchanges"])
                both = (values[direction]["seconds"] for direction in ("forward", "backward"))
                exchange_s = sum(float(seconds) for phases in both for seconds in phases.values())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(f"line {number} of {path} is not of a training's log.jsonl") from error
    if not steps or steps[-1][0] != num_exchanges:
        raise SpecError(
            f"{path} tells no step times of a whole training; make it with tersor train dlrm --run "
            "DIR --log-every N, N a divisor of --steps"
        )
    whole_s, previous = 0.0, 0
    for step, seconds in steps:
        if step <= previous:
            raise SpecError(
                f"{path} has step {step} after {previous}; give the log of one training, whose steps "
                "grow from 1"
            )
        whole_s += (step - previous) * seconds
        previous = step
    if exchange_s > whole_s:
        raise SpecError(
            f"the exchanges of {path} take longer than its steps ({exchange_s:.3g} s of {whole_s:.3g} s); "
            "train anew"
        )
    return (whole_s - exchange_s) / previous
