"""The embeddings site's entry for the rest of ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ExchangeRow, LookupRow, ResultRow
from tersor.bench.embeddings.exchange_tables import (
    exchange_goals,
    exchange_table,
    exchanges_block,
)
from tersor.bench.embeddings.lookups.goals import lookup_goals
from tersor.bench.embeddings.lookups.tables import encoders_block, tables_block
from tersor.bench.embeddings.planning.planner import EMBEDDINGS_PLANNER
from tersor.bench.report.building import SectionMaker
from tersor.bench.site import SiteBench


def _tables(rows: Sequence[ResultRow]) -> list[RenderableType]:
    """Return the exchange table; look-up tables need a link, so the command line makes them."""
    return [exchange_table(rows)] if any(isinstance(row, ExchangeRow) for row in rows) else []


def _goals(rows: Sequence[ResultRow]) -> list[Goal]:
    exchanges = [row for row in rows if isinstance(row, ExchangeRow)]
    look_ups = [row for row in rows if isinstance(row, LookupRow)]
    return [
        *(exchange_goals(exchanges) if exchanges else []),
        *(lookup_goals(look_ups) if look_ups else []),
    ]


def _sections() -> list[SectionMaker]:
    from tersor.bench.embeddings.report.exchanges import exchanges_section
    from tersor.bench.embeddings.report.lookups import lookups_section
    from tersor.bench.embeddings.report.predictions import predictions_section
    from tersor.bench.embeddings.report.trainings import accuracy_section, training_section

    return [
        exchanges_section,
        lookups_section,
        accuracy_section,
        predictions_section,
        training_section,
    ]


EMBEDDINGS: Final = SiteBench(
    name="embeddings",
    suites=("embeddings", "lookups"),
    tables=_tables,
    goals=_goals,
    blocks={
        "exchanges": exchanges_block,
        "lookups": encoders_block,
        "lookup-tables": tables_block,
    },
    sections=_sections,
    planner=EMBEDDINGS_PLANNER,
)
