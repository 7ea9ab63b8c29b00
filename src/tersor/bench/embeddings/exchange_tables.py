"""Tables and goals of exchanges between ranks, with both directions of a contender together."""

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
"""The table columns; ``docs/embeddings.md`` explains them."""
_ASKED = ("1gbit", 4, 1)
"""The link, ranks and ranks per node to which the goals apply."""


@dataclass(frozen=True, slots=True)
class ExchangePair:
    """The two directions of one contender, and those of the baseline if it was measured."""

    forward: ExchangeRow
    backward: ExchangeRow
    baseline: ExchangePair | None

    @property
    def times(self) -> ExchangeTimes:
        """The times of the forward row; its link, batch and step times hold for both directions."""
        return self.forward.exchange

    def speedups(self) -> tuple[float, float, float] | None:
        """Return the speedups over the baseline: forward, backward, whole step."""
        other = self.baseline
        if other is None:
            return None
        pairs = ((self.forward, other.forward), (self.backward, other.backward))
        forward, backward = (
            theirs.exchange.exchange_s.p50 / ours.exchange.exchange_s.p50 for ours, theirs in pairs
        )
        return forward, backward, other.times.step_s.p50 / self.times.step_s.p50


def exchange_pairs(rows: Iterable[ResultRow]) -> Iterator[ExchangePair]:
    """Pair the directions of each contender, in row order; of repeated rows, the last one counts."""
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
    """Return the cells of ``EXCHANGE_COLUMNS``, one line per contender, link and batch."""
    return [_cells(pair) for pair in exchange_pairs(rows)]


def exchanges_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the Markdown table of the exchanges that a page selects."""
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
    """Format the total milliseconds and, in brackets, those of encode, sizes, payload and decode."""
    times = row.exchange
    phases = (row.encode_s, times.sizes_s, times.payload_s, row.decode_s)
    parts = " + ".join(f"{seconds.p50 * 1e3:.1f}" for seconds in phases)
    return f"{times.exchange_s.p50 * 1e3:.1f} ({parts})"


def exchange_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of every contender's ratios and times in both directions and step times."""
    title = "Exchanges between ranks; in brackets encode + sizes + payload + decode"
    words, lines = ("link", "exchange"), exchange_cells(rows)
    return terminal_table(title, EXCHANGE_COLUMNS, lines, words=words, section=slice(2))


def exchange_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge the goals of exchanges on 4 links of 1 Gbit/s, per batch; our best contender decides."""
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
