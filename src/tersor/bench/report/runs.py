"""Read the runs of a report: result files, accuracy files, and folders of training runs.

The kind of a file is determined by its first line, not by its name. Everything is validated before it is
rendered; an invalid file raises an error that names the offending line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tersor.bench.core.row_checks import text_of
from tersor.bench.core.rows import ResultRow
from tersor.bench.report.checking import check_line, check_pair, check_prediction, check_result
from tersor.errors import CorruptDataError, SpecError

RESULT: Final = "result.json"
LOG: Final = "log.jsonl"


@dataclass(frozen=True, slots=True)
class RowsRun:
    """A result file of any suite."""

    name: str
    path: str
    rows: list[ResultRow]


@dataclass(frozen=True, slots=True)
class AccuracyRun:
    """Pairs of training runs, as ``tersor bench accuracy`` writes them."""

    name: str
    path: str
    pairs: list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Training logs by name; ``result`` is the result of ``tersor quickstart`` if it wrote them."""

    name: str
    path: str
    logs: dict[str, list[Mapping[str, Any]]]
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanRun:
    """Predicted and measured times, as ``tersor plan --check`` writes them."""

    name: str
    path: str
    lines: list[Mapping[str, Any]]


Run = RowsRun | AccuracyRun | TrainingRun | PlanRun
_KINDS: Final[Mapping[str, tuple[Callable[..., Run], str, Callable[[Any], Any]]]] = {
    "pairs": (AccuracyRun, "a pair", check_pair),
    "predictions": (PlanRun, "a prediction", check_prediction),
    "rows": (RowsRun, "a result row", ResultRow.from_config),
}


def read_runs(paths: Iterable[str]) -> list[Run]:
    """Read result files and run folders; a folder of result files yields one run per file.

    Runs whose names would clash are named by their paths.

    Raises:
        SpecError: a file or folder contains no run.
        CorruptDataError: a line is not of the kind that the first line determines.
        OSError: a file cannot be read.
    """
    runs = [run for path in paths for run in _read(path)]
    names = Counter(run.name for run in runs)
    return [run if names[run.name] == 1 else replace(run, name=run.path) for run in runs]


def _read(path: str) -> Iterator[Run]:
    place = Path(path)
    if not place.is_dir():
        yield _run_of(_lines(place), place, path)
        return
    if (place / RESULT).is_file():
        yield read_quickstart(place, path)
    elif (place / LOG).is_file():
        yield TrainingRun(place.resolve().name, path, {"training": _log(place / LOG)})
    else:
        files = {file: _lines(file) for file in sorted(place.glob("*.jsonl"))}
        # the folder may also contain plans and other files
        found = {file: lines for file, lines in files.items() if _kind(lines) is not None}
        if not found:
            raise SpecError(
                f"{path} holds no run: there is no {RESULT}, no {LOG} and no .jsonl file of results"
            )
        for file, lines in found.items():
            yield _run_of(lines, file, str(file))


def _kind(lines: list[Any]) -> str | None:
    """Return the kind of a file by its first line, or None if reports do not support it."""
    first = lines[0] if lines else {"schema": None}
    if not isinstance(first, Mapping):
        return None
    if first.get("suite") == "accuracy":
        return "pairs"
    if first.get("kind") == "plan-check":
        return "predictions"
    if "kind" in first and "step" in first:
        return "log"
    return "rows" if "schema" in first else None


def _run_of(lines: list[Any], file: Path, path: str) -> Run:
    if not lines:
        raise SpecError(f"{path} holds no rows; was the benchmark that writes it interrupted?")
    kind, name = _kind(lines), file.stem
    if kind is None:
        raise SpecError(
            f"{path} is nothing that reports are made of; name results of tersor bench, a plan --check, or "
            "the log of a training"
        )
    if kind == "log":
        return TrainingRun(name, path, {name: _checked(lines, path, "a log line", check_line)})
    make, words, check = _KINDS[kind]
    return make(name, path, _checked(lines, path, words, check))


def read_quickstart(folder: Path, path: str) -> TrainingRun:
    """Read the output folder of ``tersor quickstart``."""
    file = folder / RESULT
    try:
        result = check_result(json.loads(text_of(file)))
    except (json.JSONDecodeError, SpecError) as error:
        raise CorruptDataError(f"{file} is not the result of a quickstart: {error}") from error
    logs = {name: _log(folder / f"{name}.jsonl") for name in result["runs"]}
    return TrainingRun(folder.resolve().name, path, logs, result)


def _log(file: Path) -> list[Mapping[str, Any]]:
    return _checked(_lines(file), str(file), "a log line", check_line)


def _checked(lines: list[Any], path: str, kind: str, check: Callable[[Any], Any]) -> list[Any]:
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(check(line))
        except SpecError as error:
            raise CorruptDataError(f"line {number} of {path} is not {kind}: {error}") from error
    return found


def _lines(file: Path) -> list[Any]:
    """Return the parsed lines; a last line truncated by an interrupt is skipped."""
    found = []
    for number, line in enumerate(text_of(file).splitlines(keepends=True), start=1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            if not line.endswith("\n") and found:
                break
            raise CorruptDataError(f"line {number} of {file} is not JSON: {error}") from error
        except RecursionError as error:
            raise CorruptDataError(f"line {number} of {file} is nested too deeply") from error
    return found
