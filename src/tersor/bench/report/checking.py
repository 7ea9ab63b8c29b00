"""Validate lines of result files so thoroughly that rendering them cannot fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tersor.bench.core.row_checks import is_count, is_number, require
from tersor.errors import SpecError

_MOST_S: Final = 2.0**63


def check_line(line: Any) -> Mapping[str, Any]:
    """Validate a line of a training log and return it; raises ``SpecError`` if it is invalid."""
    if not isinstance(line, Mapping) or not isinstance(line.get("kind"), str):
        raise SpecError("it must be an object with a 'kind'")
    require("step", is_count(line.get("step")), "a count")
    for name in ("loss", "step_s", "auc", "logloss"):
        require(name, name not in line or is_number(line[name]), "a number")
    if line["kind"] == "exchange":
        for direction in ("forward", "backward"):
            _check_volume(line.get(direction))
        _check_tables(line.get("tables"))
    if "activations" in line:
        _check_saved(line["activations"])
    if line["kind"] == "run":
        _check_origin(line)
    return line


def check_prediction(line: Any) -> Mapping[str, Any]:
    """Validate a predicted and measured time and return it; raises ``SpecError`` if it is invalid."""
    if not isinstance(line, Mapping) or line.get("kind") != "plan-check":
        raise SpecError("it must be an object of kind 'plan-check'")
    for name in ("codec", "what", "link"):
        require(name, isinstance(line.get(name), str), "a text")
    require("batch", is_count(line.get("batch")), "a count")
    for name in ("measured_s", "predicted_s"):
        require(name, is_number(line.get(name)) and 0 < line[name] < _MOST_S, "a number of seconds")
    return line


def check_pair(line: Any) -> Mapping[str, Any]:
    """Validate a pair of training runs and return it; raises ``SpecError`` if it is invalid."""
    if not isinstance(line, Mapping) or line.get("suite") != "accuracy":
        raise SpecError("it must be an object of suite 'accuracy'")
    require("source", isinstance(line.get("source"), str), "a text")
    for name in ("seed", "ranks"):
        require(name, is_count(line.get(name)), "a count")
    config = line.get("config")
    require("config", isinstance(config, Mapping), "an object")
    for name in ("uncompressed", "compressed"):
        one: Any = line.get(name)
        require(name, isinstance(one, Mapping), "an object")
        require("metrics", isinstance(one.get("metrics"), Mapping), "an object")
        for metric in ("auc", "logloss"):
            require(metric, is_number(one["metrics"].get(metric)), "a number")
        require(
            "ratio",
            all(is_number(one.get(f"{d}_ratio")) for d in ("forward", "backward")),
            "a number",
        )
        curve = one.get("curve")
        is_fine = isinstance(curve, list) and all(_is_point(point) for point in curve)
        require("curve", is_fine, "a list of [step, AUC, logloss]")
        _check_tables(one.get("tables"))
    _check_origin(line)
    return line


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 3 and all(is_number(x) for x in point)


def check_result(result: Any) -> Mapping[str, Any]:
    """Validate the result of a quickstart and return it; raises ``SpecError`` if it is invalid."""
    if not isinstance(result, Mapping) or not isinstance(result.get("runs"), Mapping):
        raise SpecError("it must be an object with 'runs'")
    runs: Mapping[str, Any] = result["runs"]
    require("runs", bool(runs), "at least one")
    for name, one in runs.items():
        is_name = name.isprintable() and not set(name) & set("/\\") and name not in (".", "..")
        require("a run's name", is_name, "a file name")
        require(name, isinstance(one, Mapping), "an object")
        for metric in ("auc", "logloss", "exchange_s_per_step"):
            value = one.get(metric)
            require(metric, value is None or is_number(value), "a number")
        for direction in ("forward", "backward"):
            _check_volume(one.get(direction))
    require("tables", isinstance(result.get("tables"), list), "a list")
    for table in result["tables"]:
        require("a table", isinstance(table, Mapping), "an object")
        is_fine = is_count(table.get("num_rows")) and is_number(table.get("ratio"))
        require("a table", is_fine, "one with num_rows and ratio")
    best = result.get("best_auc")
    require("best_auc", best is None or is_number(best), "a number")
    _check_links(result.get("links"))
    _check_origin(result)
    return result


def _check_links(links: Any) -> None:
    """Validate predictions for links, which results of earlier versions and of one rank lack."""
    if links is None:
        return
    steps = links.get("steps") if isinstance(links, Mapping) else None
    names = ("gbit_s", "uncompressed_s", "adaptive_s", "speedup")
    are_fine = isinstance(steps, list) and all(
        isinstance(step, Mapping) and all(is_number(step.get(name)) for name in names)
        for step in steps
    )
    require("links", are_fine and isinstance(links.get("how"), str), "predicted steps and how")
    pays = links.get("pays_up_to_gbit_s")
    require("links", pays is None or is_number(pays), "with a number that they pay up to")


def _check_origin(values: Mapping[str, Any]) -> None:
    for name in ("versions", "machine"):
        require(name, isinstance(values.get(name, {}), Mapping), "an object")
    for name in ("git_commit", "command"):
        require(name, isinstance(values.get(name, ""), str), "a text")


def _check_volume(volume: Any) -> None:
    is_fine = isinstance(volume, Mapping) and is_number(volume.get("ratio"))
    require("a direction", is_fine and is_count(volume.get("encoded_nbytes")), "bytes and a ratio")


def _check_saved(saved: Any) -> None:
    """Validate what a step saved for backward, as a whole and by form."""
    forms = saved.get("forms") if isinstance(saved, Mapping) else None
    is_fine = isinstance(forms, Mapping) and all(
        isinstance(one, Mapping) and all(is_count(one.get(name)) for name in names)
        for one, *names in (
            (saved, "original_nbytes", "held_nbytes"),
            *((one, "num_tensors", "original_nbytes", "held_nbytes") for one in forms.values()),
        )
    )
    require("activations", is_fine, "bytes by form")


def _check_tables(tables: Any) -> None:
    is_fine = isinstance(tables, Mapping) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_count, pair))
        for pair in tables.values()
    )
    require("tables", is_fine, "pairs of bytes by table")
