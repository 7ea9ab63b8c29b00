"""Rows of exchanges between ranks, both directions of a contender together: tables and goals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ExchangeRow, ResultRow
from tersor.bench.core.tables import chosen, markdown_table, terminal_table
from tersor.bench.embeddings.contenders import BASELINE, BOUNDED

EXCHANGE_COLUMNS: Final = (
    "link", "batch", "exchange", "ratio", "forward ms", "x float32", "ratio", "backward ms",
    "x float32", "step ms", "x float32",
)  # fmt: skip
"""What a table shows; ``docs/embeddings.md`` says what the columns mean."""
_ASKED = ("1gbit", 4, 1)
"""Link, ranks, and ranks of a node."""


@dataclass(frozen=True, slots=True)
class ExchangePair:
    """Both directions of one contender, and those of the baseline beside it if it was measured."""

    forward: ExchangeRow
    backward: ExchangeRow
    baseline: ExchangePair | None

    @property
    def times(self) -> ExchangeTimes:
        """Those of the forward direction; link, batch and whole steps are of both."""
        return self.forward.exchange

    def speedups(self) -> tuple[float, float, float] | None:
        """Return how many times faster than the baseline: forward, backward, whole step."""
        other = self.baseline
        if other is None:
            return None
        pairs = ((self.forward, other.forward), (self.backward, other.backward))
        forward, backward = (
            theirs.exchange.exchange_s.p50 / ours.exchange.exchange_s.p50 for ours, theirs in pairs
        )
        return forward, backward, other.times.step_s.p50 / self.times.step_s.p50


def exchange_pairs(rows: Iterable[ResultRow]) -> Iterator[ExchangePair]:
    """Yield the contenders in their order; of two equal measurements the later one counts."""
    places: dict[tuple[str, str, int], dict[str, dict[str, ExchangeRow]]] = {}
    for row in rows:
        if isinstance(row, ExchangeRow):
            times = row.exchange
            names = places.setdefault((row.input, times.place, times.batch), {})
            names.setdefault(row.codec, {})[times.direction] = row
    for names in places.values():
        both = {name: found for name, found in names.items() if len(found) == 2}
        baseline = ExchangePair(**both[BASELINE], baseline=None) if BASELINE in both else None
        for found in both.values():
            yield ExchangePair(**found, baseline=baseline)


def exchange_cells(rows: Iterable[ResultRow]) -> list[list[str]]:
    """Return what stands under ``EXCHANGE_COLUMNS``, a line per contender, link and batch."""
    return [_cells(pair) for pair in exchange_pairs(rows)]


def exchanges_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the exchanges that a page asks for."""
    return markdown_table(EXCHANGE_COLUMNS, exchange_cells(chosen(rows, options)))


def _cells(pair: ExchangePair) -> list[str]:
    speedups = None if pair.forward.codec == BASELINE else pair.speedups()
    gains = ["", "", ""] if speedups is None else [f"{gain:.2f}" for gain in speedups]
    times = pair.times
    return [
        f"{times.link or times.network}{times.node_words}",
        f"{times.batch:,}",
        pair.forward.codec,
        f"{pair.forward.ratio:.1f}",
        _milliseconds(pair.forward),
        gains[0],
        f"{pair.backward.ratio:.1f}",
        _milliseconds(pair.backward),
        gains[1],
        f"{times.step_s.p50 * 1e3:.0f}",
        gains[2],
    ]


def _milliseconds(row: ExchangeRow) -> str:
    """Return the whole, and in brackets encode, sizes, payload and decode."""
    times = row.exchange
    phases = (row.encode_s, times.sizes_s, times.payload_s, row.decode_s)
    parts = " + ".join(f"{seconds.p50 * 1e3:.1f}" for seconds in phases)
    return f"{times.exchange_s.p50 * 1e3:.1f} ({parts})"


def exchange_table(rows: Iterable[ResultRow]) -> Table:
    """Show ratio and time of every contender in both directions, and of whole steps."""
    title = "Exchanges between ranks; in brackets encode + sizes + payload + decode"
    words, lines = ("link", "exchange"), exchange_cells(rows)
    return terminal_table(title, EXCHANGE_COLUMNS, lines, words=words, section=slice(2))


def exchange_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge what is asked of exchanges on 4 links of 1 Gbit/s, per batch; the best of ours decides."""
    found: dict[int, list[tuple[ExchangePair, tuple[float, float, float]]]] = {}
    for pair in exchange_pairs(rows):
        times, gains = pair.times, pair.speedups()
        is_asked = (times.link, times.num_ranks, times.ranks_per_node) == _ASKED
        if is_asked and gains is not None and pair.forward.codec in BOUNDED:
            found.setdefault(times.batch, []).append((pair, gains))
    asked = (("forward exchange 6.2 x float32's", 6.2, 0), ("whole step 2.0 x float32's", 2.0, 2))
    goals = []
    for name, target, k in asked:
        for batch, ours in sorted(found.items()):
            pair, gains = max(ours, key=lambda one: one[1][k])
            detail = f"{pair.forward.codec} on {pair.forward.input}"
            goals.append(Goal(f"{name}, batch {batch:,}", target, gains[k], detail))
    return goals or [Goal(name, target, None, "no such rows") for name, target, _ in asked]
