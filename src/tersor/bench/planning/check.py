"""What the model is worth: every measured exchange predicted from the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from rich.table import Table

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.rows import ExchangeRow, ResultRow, latest
from tersor.bench.core.tables import terminal_table
from tersor.bench.embeddings.planning.fit import fit_exchanges, plannable
from tersor.bench.embeddings.planning.model import Fit, Model
from tersor.errors import SpecError

HOLD_OUT: Final = ("link", "batch")
TOLERANCE: Final = 0.20
_WITHIN: Final = f"within {100 * TOLERANCE:g} %"
"""The largest error that counts as a hit: predicted over measured, less 1."""
LEAST_HITS: Final = 12
CHECK_COLUMNS: Final = (
    "link", "batch", "codec", "what", "measured ms", "predicted ms", "error",
)  # fmt: skip

SUMMARY_COLUMNS: Final = (
    "link", "batch", "points", _WITHIN, "median error", "largest error",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measured time and what was predicted for it from rows of other links, or other batches.

    Attributes:
        codec: name of the way to exchange.
        what: ``"forward"``, ``"backward"`` or ``"step"``.
        link: bandwidth of each rank's link.
        num_ranks: that took part.
        batch: samples of all ranks.
        measured_s: median of the rounds.
        predicted_s: by a model that was fitted without this link, or this batch.
        hold_out: which of the two.
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
        """Predicted over measured, less 1."""
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
    """All points, and the constants that were fitted without each held-out link or batch."""

    points: tuple[Point, ...]
    fits: Mapping[str, Fit]

    @property
    def num_hits(self) -> int:
        """How many points are within the tolerance."""
        return sum(point.is_hit for point in self.points)

    @property
    def passed(self) -> bool:
        """Whether enough points are within the tolerance, and most of all."""
        return self.num_hits >= LEAST_HITS and 2 * self.num_hits > len(self.points)

    @property
    def sentence(self) -> str:
        """What a reader must know, in one sentence."""
        kinds = []
        for name, whats in (("exchanges", ("forward", "backward")), ("steps", ("step",))):
            own = [point for point in self.points if point.what in whats]
            kinds.append(f"{sum(point.is_hit for point in own)} of {len(own)} {name}")
        held = self.points[0].hold_out
        worst = max(self.points, key=lambda point: abs(point.error))
        return (
            f"{' and '.join(kinds)} are predicted within {TOLERANCE:.0%}, each {held} from the rows of "
            f"the other {'links' if held == 'link' else 'batches'}; the largest error is "
            f"{worst.error:+.0%} ({worst.codec}, {worst.what}, {worst.link}, batch {worst.batch:,})"
        )

    def constants(self) -> list[str]:
        """Return what was fitted for each held-out link or batch."""
        return [f"without {held}: {_constants(fit)}" for held, fit in self.fits.items()]


def check(rows: Iterable[ResultRow], hold_out: str = "link") -> Check:
    """Predict the rows of every link (or batch) from those of the others.

    Of rows that answer the same question the last one counts.

    Raises:
        SpecError: there is only one link (or batch), or no exchange at all.
    """
    exchanges = plannable(latest(rows))
    if hold_out not in HOLD_OUT:
        raise SpecError(f"what is held out is {' or '.join(HOLD_OUT)}, not {hold_out!r}")

    def held_of(row: ExchangeRow) -> str:
        return str(getattr(row.exchange, hold_out))

    values = list(dict.fromkeys(held_of(row) for row in exchanges))
    if len(values) < 2:
        raise SpecError(
            f"a check needs exchanges (tersor bench embeddings without DIR) with at least two values of "
            f"{hold_out}"
        )
    points, fits = [], {}
    for value in values:
        others = (row for row in exchanges if held_of(row) != value)
        fits[f"{hold_out} {value}"] = fit = fit_exchanges(others)
        points += _points([row for row in exchanges if held_of(row) == value], fit, hold_out)
    return Check(tuple(points), fits)


def _points(rows: Sequence[ExchangeRow], fit: Fit, hold_out: str) -> list[Point]:
    points = []
    for row in rows:
        times = row.exchange
        if row.codec not in fit.profiles:
            raise SpecError(
                f"{row.codec} was measured with one {hold_out} only; nothing predicts it"
            )
        found = _model(fit, times).predict(row.codec, times.num_ranks)
        predicted_s = found.phases[times.direction].total_s
        told = [(times.direction, times.exchange_s.p50, predicted_s)]
        if times.direction == "forward":
            told.append(("step", times.step_s.p50, found.step_s))
        points += [
            Point(
                codec=row.codec, what=what, link=times.link or "", num_ranks=times.num_ranks,
                batch=times.batch, measured_s=measured_s, predicted_s=predicted_s,
                hold_out=hold_out,
            )
            for what, measured_s, predicted_s in told
        ]  # fmt: skip
    return points


def _model(fit: Fit, times: ExchangeTimes) -> Model:
    """Return the model of the measured network: latency is part of the fitted fixed costs."""
    said = {
        "ranks_per_node": times.ranks_per_node, "inter": times.link, "batch": times.batch,
        "latency": "0us", "intra_latency": "0us",
    }  # fmt: skip
    return fit.model(said)


def _constants(fit: Fit) -> str:
    transport, compute = fit.transport, fit.compute
    host_ns = transport.host_s_per_byte * 1e9
    parts = [
        f"an all-to-all reaches {transport.efficiency:.0%} of a link",
        f"sizes {transport.sizes_s * 1e3:.1f} ms",
        f"payload {transport.payload_s * 1e3:.1f} ms and {host_ns:.2f} ns per byte",
        f"{transport.unready_s * 1e3:.1f} ms more without sizes",
    ]
    if compute is not None and fit.allreduce_nbytes is not None:
        parts.append(
            f"computing {compute.fixed_s * 1e3:.0f} ms and {compute.each_s * 1e6:.0f} us per sample"
        )
        parts.append(f"all-reduce of {fit.allreduce_nbytes / 1e6:.1f} MB")
    return ", ".join(parts)


def check_cells(points: Iterable[Point]) -> list[list[str]]:
    """Return what stands under ``CHECK_COLUMNS``, a line per point."""
    return [
        [
            point.link, f"{point.batch:,}", point.codec, point.what,
            f"{point.measured_s * 1e3:.1f}", f"{point.predicted_s * 1e3:.1f}",
            f"{point.error:+.0%}{'' if point.is_hit else ' !'}",
        ]
        for point in points
    ]  # fmt: skip


def summary_cells(points: Sequence[Point]) -> list[list[str]]:
    """Return what stands under ``SUMMARY_COLUMNS``, a line per link and batch."""
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
    """Show every point with its error."""
    title, lines = f"Measured and predicted times; ! is not {_WITHIN}", check_cells(found.points)
    return terminal_table(
        title, CHECK_COLUMNS, lines, words=("link", "codec", "what"), section=slice(2)
    )
