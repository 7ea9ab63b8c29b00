"""The report section about look-ups: every encoder over all tables, and the best per table."""

from __future__ import annotations

from collections.abc import Sequence

from tersor.bench.core.rows import LookupRow, ResultRow
from tersor.bench.embeddings.lookups.sums import DumpResults, places
from tersor.bench.embeddings.lookups.tables import (
    encoder_cells,
    encoder_columns,
    table_cells,
    table_columns,
)
from tersor.bench.plots import Bar, bar_chart
from tersor.bench.report.codec_figures import CODING, front_figure, links_figure
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links, add_chooser, gbit_words
from tersor.bench.report.measured import Measured
from tersor.bench.report.rows_table import rows_cells
from tersor.bench.report.runs import RowsRun, Run
from tersor.bench.report.section import Section


def lookup_sentence(rows: Sequence[ResultRow]) -> str:
    """Describe the best ratio over all tables of the first dump in one sentence."""
    found = places(rows)
    if not found:
        return f"No tables of look-ups, but rows of whole steps: {len(rows):,}."
    first = found[0]
    held = [one for one in _measured(first) if one.promises and not one.broken]
    start = f"{len(rows):,} rows of {len(first.tables)} tables"
    if not held:
        return f"{start}."
    best = max(held, key=lambda one: one.ratio)
    return (
        f"{start}; on {first.words}, {best.label} is smallest: {best.ratio:.1f} times, by volume."
    )


def _measured(place: DumpResults, *, usable: bool = False) -> list[Measured]:
    """Return the encoders that start from floats and were measured on every table.

    With ``usable``, only those whose errors stayed within every bound, promised or not.
    """
    found = []
    for name in place.encoders:
        total = place.overall(name)
        rows = [own[name] for own in place.tables.values() if name in own]
        is_shown = total.is_usable if usable else total.is_predictable
        if is_shown and len(rows) == len(place.tables) and total.original_nbytes:
            found.append(
                Measured(
                    codec=rows[0].codec,
                    peer=rows[0].peer,
                    ratio=total.ratio,
                    encode_gbps=total.encode_gbps,
                    decode_gbps=total.decode_gbps,
                    bits_per_value=32 / total.ratio,
                    promises=any(row.relative_bound is not None for row in rows),
                    error=None,
                    broken=total.has_broken,
                    ceiling_gbps=None,
                )
            )
    return found


def lookups_section(run: Run, links: Links) -> Section | None:
    """Return the section with the figures, encoders and tables of every dump."""
    rows = run.rows if isinstance(run, RowsRun) else []
    rows = [row for row in rows if isinstance(row, LookupRow)]
    if not rows:
        return None
    section = Section(lookup_sentence(rows))
    bandwidths = {gbit_words(link): link for link in links}
    for place in places(rows):
        section.heading(f"Look-ups of {place.words}")
        section.show(*_figures(run.name, place))
        usable = _measured(place, usable=True)
        add_chooser(section, place.words, usable, links, note=_chooser_note(place, usable))
        title = f"Encoders over all tables of {place.words}; best on: tables, at "
        encoders = encoder_columns(bandwidths), encoder_cells(place, bandwidths)
        section.table(f"{title}{gbit_words(links[0])}", *encoders)
        tables = table_columns(bandwidths), table_cells(place, bandwidths)
        section.table(f"Tables of {place.words}", *tables)
    return section.table("All rows of look-ups", *rows_cells(rows))


def _chooser_note(place: DumpResults, usable: Sequence[Measured]) -> str:
    """Describe which encoders the chooser omits, and that it cannot choose per table."""
    names = {one.label for one in usable}
    beyond = [n for n in place.encoders if n not in names and place.overall(n).is_predictable]
    left = (
        f"Not among them, because they went beyond a bound: {', '.join(beyond)}. " if beyond else ""
    )
    return f"{left}This is one encoder for all tables; a choice per table, as below, can be faster."


def _figures(run: str, place: DumpResults) -> list[Figure]:
    found = _measured(place)
    bounded = [one for one in found if one.promises]
    free = [one for one in found if not one.promises and one.ratio > 1]
    name = (run, place.words)
    figures = []
    if len(bounded) > 1:
        figures = [
            front_figure(direction, name, place.words, bounded, free, folded=False)
            for direction in CODING
        ]
        figures.append(links_figure(name, place.words, _measured(place, usable=True), folded=False))
    bars = []
    for table, rows in place.tables.items():
        held = {n: row for n, row in rows.items() if row.relative_bound and row.bound_held}
        if held:
            best = max(held, key=lambda one: held[one].ratio)
            bars.append(Bar(f"table {table}", held[best].ratio, best))
    if bars:
        svg = bar_chart(f"Best ratio per table: {place.words}", "ratio", bars)
        caption = "The encoder with the largest ratio of those that hold the table's bound."
        figures.append(Figure(slug(run, "tables", place.words), svg, caption))
    return figures
