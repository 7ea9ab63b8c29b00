"""What the values of a result file must be, so that using them cannot fail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tersor.bench.core.exchange_times import DIRECTIONS
from tersor.bench.core.timing import Percentiles
from tersor.errors import CorruptDataError, SpecError

if TYPE_CHECKING:
    from tersor.bench.core.exchange_times import ExchangeTimes
    from tersor.bench.core.rows import ResultRow

_WORDS: Final = ("suite", "codec", "version", "input", "device", "note", "command", "git_commit")
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


def text_of(path: str | os.PathLike[str]) -> str:
    """Return what a result file holds.

    Raises:
        CorruptDataError: it is not text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not text; name a .jsonl file of results") from error


def check_values(row: ResultRow) -> None:
    """Look at every value of a row; raises ``SpecError`` if one is not what it must be."""
    for name in _WORDS:
        ask(name, isinstance(getattr(row, name), str), "a text")
    for name in _COUNTS:
        ask(name, is_count(getattr(row, name)), "a count")
    for name in _NUMBERS:
        ask(name, getattr(row, name) is None or is_number(getattr(row, name)), "a number")
    for name in _MAPPINGS:
        ask(name, isinstance(getattr(row, name), Mapping), "an object")
    ask("group", row.group is None or isinstance(row.group, str), "a text")
    share = row.sampled_fraction
    ask("sampled_fraction", is_number(share) and 0 < share <= 1, "above 0 and at most 1")
    for name in ("num_launches", "workspace_nbytes"):
        counts = getattr(row, name)
        is_fine = counts is None or (
            isinstance(counts, Mapping) and all(map(is_count, counts.values()))
        )
        ask(name, is_fine, "counts")
    for name in ("encode_s", "decode_s"):
        ask(name, isinstance(getattr(row, name), Percentiles), "percentiles")
    for times in (row.encode_s, row.decode_s, row.memcpy_s, row.copy_s):
        _check_times(times)
    bound = row.relative_bound
    ask("bound", bound is None or (is_number(bound) and bound > 0), "above 0")
    if row.exchange is not None:
        _check_exchange(row.exchange)


def _check_exchange(times: ExchangeTimes) -> None:
    ask("direction", times.direction in DIRECTIONS, " or ".join(DIRECTIONS))
    ask("network", isinstance(times.network, str), "a text")
    ask("link", times.link is None or isinstance(times.link, str), "a text")
    for name in ("num_ranks", "batch"):
        ask(name, is_count(getattr(times, name), least=1), "a count from 1")
    # no time where every rank knew the sizes
    _check_times(times.sizes_s)
    for seconds in (times.payload_s, times.exchange_s, times.step_s):
        _check_times(seconds, least=1e-12)


def _check_times(times: Percentiles | None, least: float = 0.0) -> None:
    if times is not None:
        for seconds in (times.p20, times.p50, times.p80):
            ask("a time", is_number(seconds) and seconds >= least, "a number of seconds")


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a value is a whole number, of at least ``least``, that 64 bits hold."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _MOST


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be computed with; it need not be finite."""
    is_any = isinstance(value, int | float) and not isinstance(value, bool)
    return is_any and not (isinstance(value, int) and abs(value) >= _MOST)


def ask(name: str, is_fine: bool, wanted: str) -> None:
    """Raise ``SpecError`` unless what was asked of a value is so."""
    if not is_fine:
        raise SpecError(f"{name} must be {wanted}")
