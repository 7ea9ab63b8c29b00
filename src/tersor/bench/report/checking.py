"""Lines of result files, looked at closely enough that showing them cannot fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tersor.bench.rows import ResultRow
from tersor.bench.timing import Percentiles
from tersor.errors import SpecError

_WORDS: Final = ("suite", "codec", "version", "input", "device", "note", "git_commit")
_COUNTS: Final = ("num_values", "original_nbytes", "encoded_nbytes", "threads", "repeat")
_NUMBERS: Final = (
    "worst_error",
    "error_bound",
    "entropy_bits",
    "distinct_rows",
    "peak_extra_nbytes",
)
_MAPPINGS: Final = ("spec", "versions", "machine")
_MOST: Final = 2**63


def check_row(line: Any) -> ResultRow:
    """Return a result row.

    Raises:
        SpecError: it is none, or a value is not what it must be.
    """
    row = ResultRow.from_config(line)
    for name in _WORDS:
        _ask(name, isinstance(getattr(row, name), str), "a text")
    for name in _COUNTS:
        _ask(name, _is_count(getattr(row, name)), "a count")
    for name in _NUMBERS:
        _ask(name, getattr(row, name) is None or _is_number(getattr(row, name)), "a number")
    for name in _MAPPINGS:
        _ask(name, isinstance(getattr(row, name), Mapping), "an object")
    _ask("group", row.group is None or isinstance(row.group, str), "a text")
    share = row.sampled_fraction
    _ask("sampled_fraction", _is_number(share) and 0 < share <= 1, "above 0 and at most 1")
    for name in ("num_launches", "workspace_nbytes"):
        counts = getattr(row, name)
        is_fine = counts is None or (
            isinstance(counts, Mapping) and all(map(_is_count, counts.values()))
        )
        _ask(name, is_fine, "counts")
    for times in (row.encode_s, row.decode_s, row.memcpy_s, row.copy_s):
        _check_times(times)
    bound = row.relative_bound
    _ask("bound", bound is None or (_is_number(bound) and bound > 0), "above 0")
    if row.exchange is not None:
        _check_exchange(row)
    return row


def _check_exchange(row: ResultRow) -> None:
    times = row.exchange
    if times is None:
        return
    for name in ("direction", "network"):
        _ask(name, isinstance(getattr(times, name), str), "a text")
    _ask("link", times.link is None or isinstance(times.link, str), "a text")
    for name in ("num_ranks", "batch"):
        _ask(name, _is_count(getattr(times, name)), "a count")
    for seconds in (times.sizes_s, times.payload_s, times.exchange_s, times.step_s):
        _check_times(seconds, least=1e-12)


def _check_times(times: Percentiles | None, least: float = 0.0) -> None:
    if times is not None:
        for seconds in (times.p20, times.p50, times.p80):
            _ask("a time", _is_number(seconds) and seconds >= least, "a number of seconds")


def check_line(line: Any) -> Mapping[str, Any]:
    """Return a line of a training's log; raises ``SpecError`` if it is none."""
    if not isinstance(line, Mapping) or not isinstance(line.get("kind"), str):
        raise SpecError("it must be an object with a 'kind'")
    _ask("step", _is_count(line.get("step")), "a count")
    for name in ("loss", "step_s", "auc", "logloss"):
        _ask(name, name not in line or _is_number(line[name]), "a number")
    if line["kind"] == "exchange":
        for direction in ("forward", "backward"):
            _check_volume(line.get(direction))
        _check_tables(line.get("tables"))
    if line["kind"] == "run":
        _check_origin(line)
    return line


def check_prediction(line: Any) -> Mapping[str, Any]:
    """Return a predicted and measured time; raises ``SpecError`` if it is none."""
    if not isinstance(line, Mapping) or line.get("kind") != "plan-check":
        raise SpecError("it must be an object of kind 'plan-check'")
    for name in ("codec", "what", "link"):
        _ask(name, isinstance(line.get(name), str), "a text")
    _ask("batch", _is_count(line.get("batch")), "a count")
    for name in ("measured_s", "predicted_s"):
        _ask(name, _is_number(line.get(name)) and 0 < line[name] < _MOST, "a number of seconds")
    return line


def check_pair(line: Any) -> Mapping[str, Any]:
    """Return a pair of trainings; raises ``SpecError`` if it is none."""
    if not isinstance(line, Mapping) or line.get("suite") != "accuracy":
        raise SpecError("it must be an object of suite 'accuracy'")
    _ask("source", isinstance(line.get("source"), str), "a text")
    for name in ("seed", "ranks"):
        _ask(name, _is_count(line.get(name)), "a count")
    config = line.get("config")
    _ask("config", isinstance(config, Mapping), "an object")
    for name in ("uncompressed", "compressed"):
        one: Any = line.get(name)
        _ask(name, isinstance(one, Mapping), "an object")
        _ask("metrics", isinstance(one.get("metrics"), Mapping), "an object")
        for metric in ("auc", "logloss"):
            _ask(metric, _is_number(one["metrics"].get(metric)), "a number")
        _ask(
            "ratio",
            all(_is_number(one.get(f"{d}_ratio")) for d in ("forward", "backward")),
            "a number",
        )
        curve = one.get("curve")
        is_fine = isinstance(curve, list) and all(_is_point(point) for point in curve)
        _ask("curve", is_fine, "a list of [step, AUC, logloss]")
        _check_tables(one.get("tables"))
    _check_origin(line)
    return line


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 3 and all(_is_number(x) for x in point)


def check_result(result: Any) -> Mapping[str, Any]:
    """Return the result of a quickstart; raises ``SpecError`` if it is none."""
    if not isinstance(result, Mapping) or not isinstance(result.get("runs"), Mapping):
        raise SpecError("it must be an object with 'runs'")
    runs: Mapping[str, Any] = result["runs"]
    _ask("runs", bool(runs), "at least one")
    for name, one in runs.items():
        is_name = name.isprintable() and not set(name) & set("/\\") and name not in (".", "..")
        _ask("a run's name", is_name, "a file name")
        _ask(name, isinstance(one, Mapping), "an object")
        for metric in ("auc", "logloss", "exchange_s_per_step"):
            value = one.get(metric)
            _ask(metric, value is None or _is_number(value), "a number")
        for direction in ("forward", "backward"):
            _check_volume(one.get(direction))
    _ask("tables", isinstance(result.get("tables"), list), "a list")
    for table in result["tables"]:
        _ask("a table", isinstance(table, Mapping), "an object")
        is_fine = _is_count(table.get("num_rows")) and _is_number(table.get("ratio"))
        _ask("a table", is_fine, "one with num_rows and ratio")
    best = result.get("best_auc")
    _ask("best_auc", best is None or _is_number(best), "a number")
    _check_origin(result)
    return result


def _check_origin(values: Mapping[str, Any]) -> None:
    for name in ("versions", "machine"):
        _ask(name, isinstance(values.get(name, {}), Mapping), "an object")
    for name in ("git_commit", "command"):
        _ask(name, isinstance(values.get(name, ""), str), "a text")


def _check_volume(volume: Any) -> None:
    is_fine = isinstance(volume, Mapping) and _is_number(volume.get("ratio"))
    _ask("a direction", is_fine and _is_count(volume.get("encoded_nbytes")), "bytes and a ratio")


def _check_tables(tables: Any) -> None:
    is_fine = isinstance(tables, Mapping) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_count, pair))
        for pair in tables.values()
    )
    _ask("tables", is_fine, "pairs of bytes by table")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and not (isinstance(value, int) and abs(value) >= _MOST)


def _ask(name: str, is_fine: bool, wanted: str) -> None:
    if not is_fine:
        raise SpecError(f"{name} must be {wanted}")
