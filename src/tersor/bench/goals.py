"""What is asked of codecs, exchanges and look-ups, judged from result rows."""

from __future__ import annotations

from collections.abc import Iterable

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ExchangeRow, LookupRow, ResultRow
from tersor.bench.embeddings.exchange_goals import exchange_goals
from tersor.bench.embeddings.lookups.goals import lookup_goals
from tersor.bench.kernels.cpu_goals import evaluate_cpu_goals
from tersor.bench.kernels.device_goals import evaluate_device_goals


def evaluate_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge all goals on the devices of the rows, or those of the CPU if there are no rows.

    Rows of exchanges between ranks and rows about look-ups have goals of their own, and a file of
    their own. Rows of other suites and inputs are ignored where they do not belong.
    """
    rows = list(rows)
    if rows and all(isinstance(row, LookupRow) for row in rows):
        return lookup_goals(rows)
    if rows and all(isinstance(row, ExchangeRow) for row in rows):
        return exchange_goals(rows)
    on_device = [row for row in rows if row.device == "cuda"]
    on_cpu = [row for row in rows if row.device != "cuda"]
    goals = evaluate_device_goals(on_device) if on_device else []
    return [*goals, *(evaluate_cpu_goals(on_cpu) if on_cpu or not on_device else [])]
