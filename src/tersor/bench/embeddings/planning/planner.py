"""The planner of steps that exchange look-ups and gradients, with its table cells and JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tersor.bench.core.rows import OperationRow, ResultRow, ShardRow, TrainingRow
from tersor.bench.embeddings.planning.check import check
from tersor.bench.embeddings.planning.description import KEYS
from tersor.bench.embeddings.planning.fit import fit_rows
from tersor.bench.embeddings.planning.model import Model
from tersor.bench.planning.planner import Planner
from tersor.bench.planning.tables import milliseconds
from tersor.planning import Phases, Prediction


def _plans(row: ResultRow) -> bool:
    """Return True for rows of exchanges, of look-ups, and of codecs alone."""
    return not isinstance(row, ShardRow | TrainingRow | OperationRow)


def _cells(_: Model, found: Prediction) -> list[str]:
    return [
        text
        for phases in found.phases.values()
        for text in (_ratio(phases), milliseconds(phases.total_s))
    ]


def _ratio(phases: Phases) -> str:
    return f"{'~' if phases.is_extrapolated else ''}{phases.ratio:.1f}"


def _values(model: Model, found: Prediction) -> dict[str, Any]:
    return {
        "rows_per_slice": model.workload.rows_per_slice(found.num_ranks),
        "sample_nbytes": model.sample_nbytes,
        "efficiency": model.efficiency,
        **{n: asdict(phases) | {"total_s": phases.total_s} for n, phases in found.phases.items()},
        "allreduce_s": found.shared_s,
    }


def _remark(model: Model, found: Prediction) -> str:
    keeps = model.methods[found.name]
    return "" if keeps else "promises no bound" if keeps is None else "broke its bound"


EMBEDDINGS_PLANNER: Final = Planner(
    name="embeddings",
    plans=_plans,
    keys=KEYS,
    choices=("codecs", "model", "bound", "backward", "setting"),
    others=("trace",),
    fit=fit_rows,
    check=check,
    columns=("ratio", "forward ms", "ratio", "backward ms"),
    cells=_cells,
    values=_values,
    remark=_remark,
)
