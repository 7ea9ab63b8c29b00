"""What the measurements of one site give to the command line, to pages and to reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.planning.planner import Planner
from tersor.bench.report.building import SectionMaker

PageBlock = Callable[[Sequence[ResultRow], Mapping[str, str]], str]
"""Makes the Markdown of one marker on a page, from rows and the marker's ``name=value`` options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteBench:
    """One site's measurements; ``tersor.bench.sites`` lists all of them.

    Attributes:
        name: of its folder in ``bench``.
        suites: what ``ResultRow.suite`` says in its rows.
        tables: shows its rows in a terminal.
        goals: judges from its rows what is asked of it.
        blocks: by the word that a marker on a page begins with.
        sections: returns what makes its parts of a report; figures are imported only then.
        planner: plans from its rows; None where it cannot be planned.
    """

    name: str
    suites: tuple[str, ...]
    tables: Callable[[Sequence[ResultRow]], list[RenderableType]]
    goals: Callable[[Sequence[ResultRow]], list[Goal]]
    blocks: Mapping[str, PageBlock]
    sections: Callable[[], Sequence[SectionMaker]]
    planner: Planner | None = None
