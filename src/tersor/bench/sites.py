"""All sites with measurements. To add one, append its ``SiteBench`` to ``SITES``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rich.console import RenderableType

from tersor.bench.activations.site import ACTIVATIONS
from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.embeddings.site import EMBEDDINGS
from tersor.bench.kernels.site import KERNELS
from tersor.bench.planning.blocks import check_block, plan_block, sweep_block
from tersor.bench.planning.planner import Planner
from tersor.bench.report.building import SectionMaker
from tersor.bench.shards.site import SHARDS
from tersor.bench.site import PageBlock, SiteBench
from tersor.errors import SpecError

SITES: Final = (EMBEDDINGS, KERNELS, SHARDS, ACTIVATIONS)
_PlanBlock = Callable[[Planner, Sequence[ResultRow], Mapping[str, str]], str]
_PLAN_BLOCKS: Final[Mapping[str, _PlanBlock]] = {
    "plan": plan_block, "plan-sweep": sweep_block, "plan-check": check_block,
}  # fmt: skip


def planners() -> list[Planner]:
    """Return the planners of all sites that have one."""
    return [site.planner for site in SITES if site.planner is not None]


def planner_of(rows: Sequence[ResultRow]) -> Planner:
    """Return the planner for these rows.

    Raises:
        SpecError: no planner accepts any of the rows, or the rows belong to several planners.
    """
    found = [one for one in planners() if any(one.plans(row) for row in rows)]
    if not found:
        raise SpecError("there are no result rows to plan from; tersor bench makes them")
    if len(found) > 1:
        names = " and of ".join(one.name for one in found)
        raise SpecError(f"these rows are of {names}; give files of one of them")
    return found[0]


def rows_by_site(rows: Iterable[ResultRow]) -> list[tuple[SiteBench, list[ResultRow]]]:
    """Group rows by site; rows of unknown suites are omitted."""
    rows = list(rows)
    owned = [(site, [row for row in rows if row.suite in site.suites]) for site in SITES]
    return [(site, own) for site, own in owned if own]


def evaluate_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge the goals of every site that has rows, or those of the kernels if no site has any."""
    found = rows_by_site(rows)
    return [goal for site, own in found or [(KERNELS, [])] for goal in site.goals(own)]


def site_tables(rows: Iterable[ResultRow]) -> list[RenderableType]:
    """Return the terminal tables of every site that has rows."""
    return [table for site, own in rows_by_site(rows) for table in site.tables(own)]


def page_blocks() -> dict[str, PageBlock]:
    """Return the page blocks of all sites by the keyword of their marker."""
    own = {word: block for site in SITES for word, block in site.blocks.items()}
    return {**own, **{word: _planned(block) for word, block in _PLAN_BLOCKS.items()}}


def _planned(block: _PlanBlock) -> PageBlock:
    """Return a page block that passes the planner of its rows to ``block``."""
    return lambda rows, options: block(planner_of(rows), rows, options)


def report_sections() -> list[SectionMaker]:
    """Return the makers of all report sections, in page order."""
    return [make for site in SITES for make in site.sections()]
