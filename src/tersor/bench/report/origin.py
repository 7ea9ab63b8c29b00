"""The provenance of results: machine, versions, commit and commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tersor.bench.core.rows import ResultRow
from tersor.bench.report.runs import AccuracyRun, PlanRun, RowsRun, Run

_MACHINE: Final = {
    "cpu": "processor",
    "cores": "cores",
    "memory_gib": "memory, GiB",
    "gpu": "accelerator",
    "gpu_memory_gib": "its memory, GiB",
}


def environment(run: Run) -> dict[str, str]:
    """Return the environment of a run; if its rows differ in a fact, all values are listed."""
    origins = [_origin(one) for one in _parts(run)]
    facts = {}
    for key, name in _MACHINE.items():
        facts[name] = _different(machine.get(key) for machine, _, _ in origins)
    packages = list(dict.fromkeys(name for _, versions, _ in origins for name in versions))
    facts["versions"] = ", ".join(
        f"{name} {_different(versions.get(name) for _, versions, _ in origins)}"
        for name in packages
    )
    facts["commit"] = _different(commit for _, _, commit in origins)
    return {name: fact for name, fact in facts.items() if fact}


def machines(run: Run) -> list[str]:
    """Return the accelerators, or else the processors, on which a run was measured."""
    found = [machine.get("gpu", machine.get("cpu")) for machine, _, _ in map(_origin, _parts(run))]
    return list(dict.fromkeys(str(name) for name in found if name))


def commands(run: Run) -> list[str]:
    """Return the command lines that made a run, as far as its rows record them."""
    parts = _parts(run)
    typed = (p.command if isinstance(p, ResultRow) else p.get("command") for p in parts)
    return list(dict.fromkeys(str(command) for command in typed if command))


def _parts(run: Run) -> Sequence[Any]:
    """Return the parts of a run that record its provenance: rows, pairs, a result or log lines."""
    if isinstance(run, RowsRun):
        return run.rows
    if isinstance(run, AccuracyRun):
        return run.pairs
    if isinstance(run, PlanRun):
        return []
    lines = [line for log in run.logs.values() for line in log if line["kind"] == "run"]
    return [run.result] if run.result else lines


def _origin(part: Any) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    if isinstance(part, ResultRow):
        return part.machine, part.versions, part.git_commit
    return part.get("machine", {}), part.get("versions", {}), str(part.get("git_commit", ""))


def _different(values: Iterable[Any]) -> str:
    return " / ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))
