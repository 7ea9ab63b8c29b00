"""Shards, as other parts of ``bench`` see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType

from tersor.bench.core.rows import ResultRow
from tersor.bench.report.building import SectionMaker
from tersor.bench.shards.planning.planner import SHARDS_PLANNER
from tersor.bench.shards.tables import shard_goals, shard_table, shards_block
from tersor.bench.site import SiteBench


def _tables(rows: Sequence[ResultRow]) -> list[RenderableType]:
    return [shard_table(rows)]


def _sections() -> list[SectionMaker]:
    from tersor.bench.shards.report import shards_section

    return [shards_section]


SHARDS: Final = SiteBench(
    name="shards",
    suites=("shards",),
    tables=_tables,
    goals=shard_goals,
    blocks={"shards": shards_block},
    sections=_sections,
    planner=SHARDS_PLANNER,
)
