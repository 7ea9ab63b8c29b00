"""Check a model by predicting every measured time from rows of other links, or other batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, TypeVar

from rich.table import Table

from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import terminal_table
from tersor.errors import SpecError

TOLERANCE: Final = 0.20
"""The largest relative error that counts as a hit."""
_WITHIN: Final = f"within {100 * TOLERANCE:g} %"
LEAST_HITS: Final = 12
_STEP: Final = "step"
CHECK_COLUMNS: Final = (
    "link", "batch", "codec", "what", "measured ms", "predicted ms", "error",
)  # fmt: skip
SUMMARY_COLUMNS: Final = (
    "link", "batch", "points", _WITHIN, "median error", "largest error",
)  # fmt: skip
R = TypeVar("R", bound=ResultRow)
F = TypeVar("F")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A measured time and its prediction from rows of other links, or of other batches.

    Attributes:
        codec: name of the exchange method.
        what: ``"step"``, or the name of the exchange.
        link: bandwidth of each node's link.
        num_ranks: ranks that took part.
        batch: samples, or sequences, of all ranks.
        measured_s: median seconds of the rounds.
        predicted_s: seconds predicted by a model that was fitted without this link, or this batch.
        hold_out: whether the link or the batch was held out.
    """

    codec: str
    what: str
    link: str
    num_ranks: int
    batch: int
    measured_s: float
    predicted_s: float
    hold_out: str

    @property
    def error(self) -> float:
        """The relative error: predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_hit(self) -> bool:
        """Whether the error is within the tolerance."""
        return abs(self.error) <= TOLERANCE

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"kind": "plan-check", **asdict(self), "error": self.error}


@dataclass(frozen=True, slots=True)
class Check:
    """All points, and a description of the fit without each held-out link or batch."""

    points: tuple[Point, ...]
    fitted: Mapping[str, str]

    @property
    def num_hits(self) -> int:
        """The number of points within the tolerance."""
        return sum(point.is_hit for point in self.points)

    @property
    def passed(self) -> bool:
        """Whether enough points, and more than half of all, are within the tolerance."""
        return self.num_hits >= LEAST_HITS and 2 * self.num_hits > len(self.points)

    @property
    def sentence(self) -> str:
        """A summary in one sentence."""
        kinds = []
        for name, is_step in (("exchanges", False), ("steps", True)):
            own = [point for point in self.points if (point.what == _STEP) is is_step]
            kinds.append(f"{sum(point.is_hit for point in own)} of {len(own)} {name}")
        held = self.points[0].hold_out
        worst = max(self.points, key=lambda point: abs(point.error))
        return (
            f"{' and '.join(kinds)} are predicted within {TOLERANCE:.0%}, each {held} from the rows of "
            f"the other {'links' if held == 'link' else 'batches'}; the largest error is "
            f"{worst.error:+.0%} ({worst.codec}, {worst.what}, {worst.link}, batch {worst.batch:,})"
        )

    def constants(self) -> list[str]:
        """Describe the fit for each held-out link or batch."""
        return [f"without {held}: {words}" for held, words in self.fitted.items()]


def held_out(
    rows: Sequence[R],
    hold_out: str,
    held_of: Callable[[R], str],
    fit: Callable[[Sequence[R]], F],
    points: Callable[[Sequence[R], F], list[Point]],
    words: Callable[[F], str],
    *,
    made_by: str,
) -> Check:
    """Hold out each value of a property in turn, and predict its rows from all others.

    Args:
        rows: the measured rows.
        hold_out: name of the property.
        held_of: returns the property of a row.
        fit: fits rows.
        points: predicts rows with a fit.
        words: describes a fit.
        made_by: the command that makes such rows.

    Raises:
        SpecError: there is only one value, or no row at all.
    """
    values = list(dict.fromkeys(held_of(row) for row in rows))
    if len(values) < 2:
        raise SpecError(
            f"a check needs exchanges ({made_by}) with at least two values of {hold_out}"
        )
    found: list[Point] = []
    fitted = {}
    for value in values:
        one = fit([row for row in rows if held_of(row) != value])
        fitted[f"{hold_out} {value}"] = words(one)
        found += points([row for row in rows if held_of(row) == value], one)
    return Check(tuple(found), fitted)


def refuse_unpredicted(name: str, known: Iterable[str], hold_out: str) -> None:
    """Raise ``SpecError`` if only the held-out rows have this exchange method."""
    if name not in known:
        raise SpecError(f"{name} was measured with one {hold_out} only; nothing predicts it")


def check_cells(points: Iterable[Point]) -> list[list[str]]:
    """Return the cells of ``CHECK_COLUMNS``, one line per point."""
    return [
        [
            point.link, f"{point.batch:,}", point.codec, point.what,
            f"{point.measured_s * 1e3:.1f}", f"{point.predicted_s * 1e3:.1f}",
            f"{point.error:+.0%}{'' if point.is_hit else ' !'}",
        ]
        for point in points
    ]  # fmt: skip


def summary_cells(points: Sequence[Point]) -> list[list[str]]:
    """Return the cells of ``SUMMARY_COLUMNS``, one line per link and batch."""
    places: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        places.setdefault((point.link, point.batch), []).append(point)
    cells = []
    for (link, batch), own in places.items():
        errors = [point.error for point in own]
        hits = sum(point.is_hit for point in own)
        middle, worst = median(abs(e) for e in errors), max(errors, key=abs)
        cells.append(
            [link, f"{batch:,}", str(len(own)), str(hits), f"{middle:.0%}", f"{worst:+.0%}"]
        )
    return cells


def check_table(found: Check) -> Table:
    """Return a table of all points with their errors."""
    title, lines = f"Measured and predicted times; ! is not {_WITHIN}", check_cells(found.points)
    return terminal_table(
        title, CHECK_COLUMNS, lines, words=("link", "codec", "what"), section=slice(2)
    )
