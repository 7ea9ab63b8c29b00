"""The report section about exchanges between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tersor.bench.core.exchange_times import DIRECTIONS
from tersor.bench.core.rows import ExchangeRow, ResultRow
from tersor.bench.embeddings.contenders import BASELINE, BOUNDED
from tersor.bench.embeddings.exchange_tables import exchange_cells, exchange_pairs
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
Gains = dict[tuple[str, str, int, int], dict[str, list[tuple[float, float]]]]
_WHAT: Final = {
    "forward": "exchange of looked-up rows",
    "backward": "exchange of gradients",
    "step": "whole training step",
}


def speedups(rows: Iterable[ResultRow]) -> Gains:
    """Return each contender's (Gbit/s, speedup over float32) by what is timed, input, ranks, batch."""
    found: Gains = {}
    for pair in exchange_pairs(rows):
        times, gains = pair.times, pair.speedups()
        gbit_s = _gbit_s(times.link or "")
        if gains is None or gbit_s is None or pair.forward.codec == BASELINE:
            continue
        for what, gain in zip(_WHAT, gains, strict=True):
            source = f"{pair.forward.input}{times.node_words}"
            lines = found.setdefault((what, source, times.num_ranks, times.batch), {})
            lines.setdefault(pair.forward.codec, []).append((gbit_s, gain))
    for lines in found.values():
        for points in lines.values():
            points.sort()
    return found


def _sentence(rows: Sequence[ResultRow]) -> str:
    """Describe the largest speedup of a whole step in one sentence."""
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
    """Return the section with speedups over bandwidth and the times of every contender."""
    found = run.rows if isinstance(run, RowsRun) else []
    rows = [row for row in found if isinstance(row, ExchangeRow)]
    if not rows:
        return None
    section = Section(_sentence(rows)).heading("Exchanges between ranks")
    section.show(*_figures(run.name, speedups(rows)))
    cells = [_with_number(line) for line in exchange_cells(rows)]
    title = "Times of exchanges and steps; in brackets encode + sizes + payload + decode"
    section.table(title, _HEAD, cells)
    directions = {(_place(row), row.exchange.direction) for row in rows}
    both = {place for place, _ in directions if {(place, one) for one in DIRECTIONS} <= directions}
    alone = [
        [row.codec, row.exchange.direction, f"{row.exchange.place}, batch {row.exchange.batch:,}"]
        for row in rows
        if _place(row) not in both
    ]
    if alone:
        section.table("Rows of one direction only", ("exchange", "direction", "place"), alone)
    return section


def _figures(run: str, gains: Gains) -> list[Figure]:
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
    """Draw speedups over bandwidth, or as bars if there is only one link."""
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
    """Return a line with its link as a number of Gbit/s, so that readers can sort by it."""
    gbit_s = _gbit_s(cells[0])
    return [cells[0] if gbit_s is None else f"{gbit_s:g}", *cells[1:]]


def _gbit_s(link: str) -> float | None:
    """Return the bandwidth of a link in Gbit/s, or None if it is not throttled."""
    try:
        return Bandwidth.parse(link).gbit_s
    except SpecError:
        return None


def _place(row: ExchangeRow) -> tuple[str, str, str, int]:
    return row.codec, row.input, row.exchange.place, row.exchange.batch
