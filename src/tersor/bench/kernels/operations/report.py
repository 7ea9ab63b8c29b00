"""The report section about fused operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.core.rows import OperationRow
from tersor.bench.kernels.operations.tables import COLUMNS, operation_cells, operation_rows
from tersor.bench.plots import Bar, bar_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links
from tersor.bench.report.runs import RowsRun, Run
from tersor.bench.report.section import Section

_CAPTION: Final = "Median times of calls in a loop, with the host's share; bytes are those that a call reads and writes."


def operations_section(run: Run, _links: Links) -> Section | None:
    """Return the section with every operation's share of a copy's speed, and all times."""
    rows = operation_rows(run.rows) if isinstance(run, RowsRun) else []
    if not rows:
        return None
    section = Section(_sentence(rows)).heading("Fused operations on groups")
    section.show(*_figures(run.name, rows))
    return section.table("Fused operations", COLUMNS, [operation_cells(row) for row in rows])


def _sentence(rows: Sequence[OperationRow]) -> str:
    start = f"{len(rows):,} row{'s' * (len(rows) > 1)} of fused operations on groups"
    shares = [(row.ceiling_share, row.codec) for row in rows if row.ceiling_share is not None]
    if not shares:
        return f"{start}."
    (least, slow), (most, fast) = min(shares), max(shares)
    return (
        f"{start}; by bytes moved they run at {least:.2f} ({slow}) to {most:.2f} ({fast}) of the "
        "speed of a copy."
    )


def _figures(run: str, rows: Sequence[OperationRow]) -> list[Figure]:
    places: dict[tuple[str, int, int], list[OperationRow]] = {}
    for row in rows:
        places.setdefault((row.device, row.original_nbytes, row.threads), []).append(row)
    figures: list[Figure] = []
    for (device, nbytes, threads), same in places.items():
        where = f"{nbytes / 2**20:.0f} MiB on {device}" + (
            "" if threads == 1 else f", {threads} threads"
        )
        bars = [Bar(row.codec, row.ceiling_share or 0.0) for row in same]
        svg = bar_chart(f"Fused operations: {where}", "share of a copy's bytes per second", bars)
        figures.append(Figure(slug(run, "operations", where), svg, _CAPTION, bool(figures)))
    return figures
