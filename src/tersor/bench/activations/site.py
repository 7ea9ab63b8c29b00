"""The activations site's entry for the rest of ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType

from tersor.bench.activations.accuracy import SUITE as ACCURACY
from tersor.bench.activations.goals import step_goals
from tersor.bench.activations.suite import SUITE
from tersor.bench.activations.tables import step_tables, steps_block
from tersor.bench.activations.trainings import (
    training_goals,
    training_table,
    trainings_block,
)
from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.report.building import SectionMaker
from tersor.bench.site import SiteBench


def _tables(rows: Sequence[ResultRow]) -> list[RenderableType]:
    has_trainings = any(row.suite == ACCURACY for row in rows)
    return [*step_tables(rows), *([training_table(rows)] if has_trainings else [])]


def _goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals of the suites that the rows belong to."""
    judged = {SUITE: step_goals, ACCURACY: training_goals}
    suites = {row.suite for row in rows}
    return [goal for suite, judge in judged.items() if suite in suites for goal in judge(rows)]


def _sections() -> list[SectionMaker]:
    from tersor.bench.activations.report import steps_section, trainings_section

    return [steps_section, trainings_section]


ACTIVATIONS: Final = SiteBench(
    name="activations",
    suites=(SUITE, ACCURACY),
    tables=_tables,
    goals=_goals,
    blocks={"activations": steps_block, "activation-trainings": trainings_block},
    sections=_sections,
)
