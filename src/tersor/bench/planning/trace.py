"""How long ranks compute, from the log of a training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tersor.errors import SpecError


def computing_s(path: str | os.PathLike[str]) -> float:
    """Return the mean seconds of a step without its exchanges, from ``log.jsonl`` of a run.

    The all-reduce of dense gradients is part of it. Compiling kernels in the first steps counts on
    both sides, and so not at all.

    Raises:
        SpecError: the log holds no whole training, from its first step to its last.
    """
    steps: list[tuple[int, float]] = []
    exchanged: dict[str, Any] | None = None
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            if values["kind"] == "train":
                steps.append((int(values["step"]), float(values["step_s"])))
            elif values["kind"] == "exchange":
                exchanged = values
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise SpecError(f"line {number} of {path} is not of a training's log.jsonl") from error
    if exchanged is None or not steps or steps[-1][0] != exchanged.get("num_exchanges"):
        raise SpecError(
            f"{path} tells no step times of a whole training; make it with tersor train dlrm --run "
            "DIR --log-every N, N a divisor of --steps"
        )
    whole_s, previous = 0.0, 0
    for step, seconds in steps:
        whole_s += (step - previous) * seconds
        previous = step
    exchange_s = sum(
        sum(exchanged[direction]["seconds"].values()) for direction in ("forward", "backward")
    )
    return max(0.0, whole_s - exchange_s) / previous
