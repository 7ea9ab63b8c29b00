"""The interface between one site's measurements and the command line, pages and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.planning.planner import Planner
from tersor.bench.report.building import SectionMaker

PageBlock = Callable[[Sequence[ResultRow], Mapping[str, str]], str]
"""Renders the Markdown of one marker on a page from rows and the marker's ``name=value`` options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteBench:
    """One site's measurements; ``tersor.bench.sites`` lists all of them.

    Attributes:
        name: name of its folder in ``bench``.
        suites: values of ``ResultRow.suite`` in its rows.
        tables: renders its rows as terminal tables.
        goals: judges the site's goals from its rows.
        blocks: page blocks by the keyword of their marker.
        sections: returns the makers of its report sections; only this call imports figures.
        planner: plans from its rows; None if the site has no planning model.
    """

    name: str
    suites: tuple[str, ...]
    tables: Callable[[Sequence[ResultRow]], list[RenderableType]]
    goals: Callable[[Sequence[ResultRow]], list[Goal]]
    blocks: Mapping[str, PageBlock]
    sections: Callable[[], Sequence[SectionMaker]]
    planner: Planner | None = None
