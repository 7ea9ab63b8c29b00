"""The part of a report about exchanges between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.rows import ExchangeRow, ResultRow
from tersor.bench.embeddings.contenders import BASELINE, BOUNDED
from tersor.bench.embeddings.exchange_tables import exchange_cells
from tersor.bench.plots import Bar, bar_chart, line_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links, gbit_words
from tersor.bench.report.runs import RowsRun, Run
from tersor.bench.report.section import Section
from tersor.errors import SpecError
from tersor.workloads.network.bandwidth import Bandwidth

_HEAD: Final = (
    "link Gbit/s", "batch", "exchange", "ratio forward", "forward ms", "forward x float32",
    "ratio backward", "backward ms", "backward x float32", "step ms", "step x float32",
)  # fmt: skip
_WHAT: Final = {
    "forward": "exchange of looked-up rows",
    "backward": "exchange of gradients",
    "step": "whole training step",
}


@dataclass(frozen=True, slots=True)
class _Timed:
    """Seconds of one contender in one direction, or of the whole step, on one link."""

    what: str
    input: str
    num_ranks: int
    batch: int
    link_gbit_s: float | None
    codec: str
    seconds: float


def link_gbit_s(times: ExchangeTimes) -> float | None:
    """Return the bandwidth of a link in Gbit/s; None where nothing throttles it."""
    if times.link is None:
        return None
    try:
        return Bandwidth.parse(times.link).bits_per_s / 1e9
    except SpecError:
        return None


def _timed(rows: Iterable[ResultRow]) -> Iterable[_Timed]:
    for row in rows:
        if isinstance(row, ExchangeRow):
            times, named = row.exchange, f"{row.input}{row.exchange.node_words}"
            place = (named, times.num_ranks, times.batch, link_gbit_s(times), row.codec)
            yield _Timed(times.direction, *place, times.exchange_s.p50)
            yield _Timed("step", *place, times.step_s.p50)


def speedups(
    rows: Iterable[ResultRow],
) -> dict[tuple[str, str, int, int], dict[str, list[tuple[float, float]]]]:
    """Return, by what is timed, input, ranks and batch, each contender's (Gbit/s, times float32)."""
    timed = list(_timed(rows))
    seconds = {
        (t.what, t.input, t.num_ranks, t.batch, t.link_gbit_s, t.codec): t.seconds for t in timed
    }
    found: dict[tuple[str, str, int, int], dict[str, list[tuple[float, float]]]] = {}
    for (what, source, ranks, batch, link, codec), own in seconds.items():
        base = seconds.get((what, source, ranks, batch, link, BASELINE))
        if base is not None and link is not None and codec != BASELINE:
            lines = found.setdefault((what, source, ranks, batch), {})
            lines.setdefault(codec, []).append((link, base / own))
    return {
        place: {codec: sorted(points) for codec, points in lines.items()}
        for place, lines in found.items()
    }


def _sentence(rows: Sequence[ResultRow]) -> str:
    """Return the largest gain of a whole step, in one sentence."""
    best = [
        (gain, codec, link, place)
        for place, lines in speedups(rows).items()
        if place[0] == "step"
        for codec, points in lines.items()
        if codec in BOUNDED
        for link, gain in points
    ]
    start = f"{len(rows):,} rows of exchanges between ranks"
    if not best:
        return f"{start}."
    gain, codec, link, (_, _, ranks, batch) = max(best)
    return (
        f"{start}; of those that promise an error, {codec} gains most: whole steps {gain:.2f} times as "
        f"fast as with float32, on {ranks} ranks, links of {link:g} Gbit/s and batch {batch:,}."
    )


def exchanges_section(run: Run, _links: Links) -> Section | None:
    """Return figures of the gain over the bandwidth, and the times of every contender."""
    found = run.rows if isinstance(run, RowsRun) else []
    rows = [row for row in found if isinstance(row, ExchangeRow)]
    if not rows:
        return None
    section = Section(_sentence(rows)).heading("Exchanges between ranks")
    section.show(*_figures(run.name, speedups(rows)))
    cells = [_with_number(line) for line in exchange_cells(rows)]
    title = "Times of exchanges and steps; in brackets encode + sizes + payload + decode"
    section.table(title, _HEAD, cells)
    alone = [row for row in rows if not _is_paired(row, rows)]
    if alone:
        head = ("exchange", "direction", "place")
        section.table("Rows of one direction only", head, _alone(alone))
    return section


def _figures(
    run: str, gains: Mapping[tuple[str, str, int, int], Mapping[str, list[tuple[float, float]]]]
) -> list[Figure]:
    batches = sorted({batch for _, _, _, batch in gains})
    figures = []
    for (what, source, ranks, batch), lines in gains.items():
        named = f"{source}, {ranks} ranks, batch {batch:,}"
        svg = _chart(f"Measured speed-up, {_WHAT.get(what, what)}: {named}", lines)
        caption = "Median of the slowest rank's times, encoding and decoding counted."
        name = slug(run, "speedup", what, source, str(ranks), str(batch))
        is_folded = batch != batches[len(batches) // 2] or what == "backward"
        figures.append(Figure(name, svg, caption, is_folded))
    return figures


def _chart(title: str, lines: Mapping[str, list[tuple[float, float]]]) -> str:
    """Draw gains over the bandwidth; those of a single link as bars."""
    gained = f"times faster than {BASELINE}"
    links = {link for points in lines.values() for link, _ in points}
    if len(links) > 1:
        return line_chart(
            title, "link, Gbit/s", lines, y_label=gained, log_x=True, log_y=True,
            level=(1.0, BASELINE),
        )  # fmt: skip
    bars = [Bar(codec, gain) for codec, points in lines.items() for _, gain in points]
    [link] = links
    return bar_chart(f"{title}, link of {gbit_words(link)}", gained, [Bar(BASELINE, 1.0), *bars])


def _with_number(cells: Sequence[str]) -> list[str]:
    """Return a line with its link as a number of Gbit/s, by which a reader can sort."""
    try:
        link = f"{Bandwidth.parse(cells[0]).bits_per_s / 1e9:g}"
    except SpecError:
        link = cells[0]
    return [link, *cells[1:]]


def _place(row: ResultRow) -> tuple[str, str, str, int] | None:
    if not isinstance(row, ExchangeRow):
        return None
    return row.codec, row.input, row.exchange.place, row.exchange.batch


def _is_paired(row: ResultRow, rows: Sequence[ResultRow]) -> bool:
    between = [r for r in rows if isinstance(r, ExchangeRow)]
    same = {r.exchange.direction for r in between if _place(r) == _place(row)}
    return len(same) == 2


def _alone(rows: Sequence[ResultRow]) -> list[list[str]]:
    return [
        [row.codec, row.exchange.direction, f"{row.exchange.place}, batch {row.exchange.batch:,}"]
        for row in rows
        if isinstance(row, ExchangeRow)
    ]
