"""Tables and goals of exchanging weights and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow, ShardRow
from tersor.bench.core.tables import chosen, markdown_table, terminal_table
from tersor.bench.shards.contenders import BASELINES, GLOO_NOTE

SHARD_COLUMNS: Final = (
    "link", "exchange", "bits/weight", "bits/gradient", "exchange ms", "x fp32", "step ms",
    "tokens/s", "x fp32", "loss",
)  # fmt: skip
"""The table columns; ``docs/benchmark-shards.md`` explains them."""
_ASKED: Final = (
    ("1gbit", "exchange", "fsdp-fp32", 6.0),
    ("1gbit", "exchange", "fsdp-bf16", 3.0),
    ("1gbit", "exchange", "fsdp-two-hop", 2.0),
    ("1gbit", "tokens/s", "fsdp-fp32", 2.2),
    ("1gbit", "tokens/s", "fsdp-bf16", 1.4),
    ("100mbit", "tokens/s", "fsdp-fp32", 6.0),
    ("100mbit", "tokens/s", "fsdp-bf16", 3.5),
)
"""The link, what is timed, the method it is compared with, and the required speedup of ours."""
_JUDGED: Final = ("fsdp-4-bit", "fsdp-4-bit-node", "fsdp-4-bit-bf16")
_ASKED_PLACE: Final = ("gpt-10M", 4, 2)


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """The rows of all exchange methods for one model, network and batch.

    Attributes:
        rows: rows by the name of the method; of repeated measurements, the last one.
    """

    rows: Mapping[str, ShardRow]

    def gain(self, row: ShardRow, what: str, other: str | None = None) -> float | None:
        """Return the speedup of a row's step or exchange over another method's.

        The result is None if the other method was not measured.

        Args:
            row: a row of this place.
            what: ``"exchange"``, or anything else for a whole step.
            other: name of the other method; None for float32 with the same wrapper.
        """
        theirs = self.rows.get(other or BASELINES[row.shards.wrapper])
        if theirs is None:
            return None
        if what == "exchange":
            return theirs.shards.exchange_s.p50 / row.shards.exchange_s.p50
        return row.shards.tokens_per_s / theirs.shards.tokens_per_s


def shard_places(rows: Iterable[ResultRow]) -> Iterator[ShardPlace]:
    """Group the rows into comparable sets."""
    places: dict[tuple[str, str, int], dict[str, ShardRow]] = {}
    for row in rows:
        if isinstance(row, ShardRow):
            place = places.setdefault((row.input, row.shards.place, row.shards.batch), {})
            place[row.codec] = row
    for found in places.values():
        yield ShardPlace(found)


def shard_cells(rows: Iterable[ResultRow]) -> list[list[str]]:
    """Return the cells of ``SHARD_COLUMNS``, one line per method and network."""
    return [_cells(place, row) for place in shard_places(rows) for row in place.rows.values()]


def _cells(place: ShardPlace, row: ShardRow) -> list[str]:
    times = row.shards
    is_baseline = row.codec in BASELINES.values()
    gains = [None if is_baseline else place.gain(row, what) for what in ("exchange", "step")]
    bits = (row.bits_per_weight, row.bits_per_gradient)
    loss = None if row.quality is None else row.quality.loss
    return [
        times.link or times.network,
        row.codec,
        *("" if one is None else f"{one:.2f}" for one in bits),
        f"{times.exchange_s.p50 * 1e3:.0f}",
        "" if gains[0] is None else f"{gains[0]:.2f}",
        f"{times.step_s.p50 * 1e3:.0f}",
        f"{times.tokens_per_s:,.0f}",
        "" if gains[1] is None else f"{gains[1]:.2f}",
        "" if loss is None else f"{loss.mean:.4f}",
    ]


def shards_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the Markdown table of the rows that a page selects."""
    return markdown_table(SHARD_COLUMNS, shard_cells(chosen(rows, options)))


def shard_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of the bits, times and tokens of every method."""
    rows = list(rows)
    shown = [row for row in rows if isinstance(row, ShardRow)]
    models = sorted({f"{row.input}, {row.shards.num_ranks} ranks" for row in shown})
    title = f"Weights and gradients between ranks: {'; '.join(models)}"
    table = terminal_table(
        title, SHARD_COLUMNS, shard_cells(rows), words=("link", "exchange"), section=slice(1)
    )
    table.caption = GLOO_NOTE
    return table


def shard_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge the goals for 2 nodes of 2 ranks and 10M weights; our best method decides."""
    places = list(shard_places(rows))
    return [_goal(places, *asked) for asked in _ASKED]


def _goal(places: Iterable[ShardPlace], link: str, what: str, other: str, target: float) -> Goal:
    found = [
        (gain, row.codec)
        for place in places
        for row in place.rows.values()
        if row.codec in _JUDGED and _is_asked(row, link)
        if (gain := place.gain(row, what, other)) is not None
    ]
    gain, detail = max(found, default=(None, "no such rows"))
    return Goal(f"{what} {target:g} x {other}'s, {link}", target, gain, detail)


def _is_asked(row: ShardRow, link: str) -> bool:
    times = row.shards
    place = (row.input, times.num_ranks, times.ranks_per_node)
    return times.link == link and place == _ASKED_PLACE
