"""The kernels site's entry for the rest of ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.kernels import SUITES
from tersor.bench.kernels.cpu_goals import evaluate_cpu_goals
from tersor.bench.kernels.device_goals import evaluate_device_goals
from tersor.bench.kernels.operations.tables import operations_block
from tersor.bench.kernels.tables import kernels_tables, rows_block
from tersor.bench.report.building import SectionMaker
from tersor.bench.site import SiteBench


def _goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals of the devices that have rows, or those of the CPU if there are no rows."""
    on_device = [row for row in rows if row.device == "cuda"]
    on_cpu = [row for row in rows if row.device != "cuda"]
    goals = evaluate_device_goals(on_device) if on_device else []
    return [*goals, *(evaluate_cpu_goals(on_cpu) if on_cpu or not on_device else [])]


def _sections() -> list[SectionMaker]:
    from tersor.bench.kernels.operations.report import operations_section
    from tersor.bench.kernels.report import codecs_section

    return [codecs_section, operations_section]


KERNELS: Final = SiteBench(
    name="kernels",
    suites=SUITES,
    tables=kernels_tables,
    goals=_goals,
    blocks={"rows": rows_block, "operations": operations_block},
    sections=_sections,
)
