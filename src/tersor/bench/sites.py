"""Every site that is measured. A new one is a ``SiteBench`` in this list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import RenderableType

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.embeddings.site import EMBEDDINGS
from tersor.bench.kernels.site import KERNELS
from tersor.bench.report.building import SectionMaker
from tersor.bench.shards.site import SHARDS
from tersor.bench.site import PageBlock, SiteBench

SITES: Final = (EMBEDDINGS, KERNELS, SHARDS)


def rows_by_site(rows: Iterable[ResultRow]) -> list[tuple[SiteBench, list[ResultRow]]]:
    """Return the sites that rows are from, each with its rows; those of unknown suites are left out."""
    rows = list(rows)
    owned = [(site, [row for row in rows if row.suite in site.suites]) for site in SITES]
    return [(site, own) for site, own in owned if own]


def evaluate_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge what is asked of every site that rows are from, or of codecs if there are no rows."""
    found = rows_by_site(rows)
    return [goal for site, own in found or [(KERNELS, [])] for goal in site.goals(own)]


def site_tables(rows: Iterable[ResultRow]) -> list[RenderableType]:
    """Return the tables of every site that rows are from."""
    return [table for site, own in rows_by_site(rows) for table in site.tables(own)]


def page_blocks() -> dict[str, PageBlock]:
    """Return what a page can ask of any site, by the first word of its marker."""
    return {word: block for site in SITES for word, block in site.blocks.items()}


def report_sections() -> list[SectionMaker]:
    """Return what makes the sections of a report, in the order in which a page shows them."""
    return [make for site in SITES for make in site.sections()]
