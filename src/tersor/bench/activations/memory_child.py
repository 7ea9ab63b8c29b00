"""Measure the memory of one step on the CPU in a separate process.

``python -m tersor.bench.activations.memory_child PLAN CONTENDER`` takes a ``CasePlan`` as JSON and writes one
JSON object to standard output: the bytes held after forward and at the peak of the step.
"""

from __future__ import annotations

import json
import sys

import msgspec

from tersor.bench.activations.cases import CasePlan
from tersor.bench.activations.contenders import make_contender
from tersor.bench.activations.measuring import step_memory


def main(arguments: list[str]) -> int:
    """Measure, print the result, and return the exit code."""
    plan, name = arguments
    case = CasePlan(**json.loads(plan)).make()
    memory = step_memory(case, make_contender(name).attached(case).forward)
    sys.stdout.write(msgspec.json.encode(memory).decode() + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
