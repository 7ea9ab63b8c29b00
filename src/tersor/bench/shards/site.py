"""The shards site's entry for the rest of ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.report.building import SectionMaker
from tersor.bench.shards.accuracy import SUITE as ACCURACY
from tersor.bench.shards.losses import loss_goals, loss_table, losses_block
from tersor.bench.shards.planning.planner import SHARDS_PLANNER
from tersor.bench.shards.tables import shard_goals, shard_table, shards_block
from tersor.bench.site import SiteBench


def _tables(rows: Sequence[ResultRow]) -> list[RenderableType]:
    shown = {"shards": shard_table, ACCURACY: loss_table}
    suites = {row.suite for row in rows}
    return [make(rows) for suite, make in shown.items() if suite in suites]


def _goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals of the suites that the rows belong to."""
    judged = {"shards": shard_goals, ACCURACY: loss_goals}
    suites = {row.suite for row in rows}
    return [goal for suite, judge in judged.items() if suite in suites for goal in judge(rows)]


def _sections() -> list[SectionMaker]:
    from tersor.bench.shards.report import losses_section, shards_section

    return [shards_section, losses_section]


SHARDS: Final = SiteBench(
    name="shards",
    suites=("shards", ACCURACY),
    tables=_tables,
    goals=_goals,
    blocks={"shards": shards_block, "losses": losses_block},
    sections=_sections,
    planner=SHARDS_PLANNER,
)
