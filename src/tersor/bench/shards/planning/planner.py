"""The planner of sharded and replicated training, with its table cells and JSON values."""

from __future__ import annotations

from typing import Any, Final

from tersor.bench.core.rows import ResultRow, ShardRow
from tersor.bench.planning.planner import Planner
from tersor.bench.planning.tables import milliseconds
from tersor.bench.shards.planning.check import check
from tersor.bench.shards.planning.description import KEYS
from tersor.bench.shards.planning.fit import fit_rows
from tersor.bench.shards.planning.model import Model
from tersor.planning import Phases, Prediction

_PARTS: Final = ("weights", "gradients")


def _plans(row: ResultRow) -> bool:
    return isinstance(row, ShardRow)


def _of(part: str, found: Prediction) -> list[Phases]:
    return [phases for name, phases in found.phases.items() if name.startswith(part)]


def _cells(model: Model, found: Prediction) -> list[str]:
    seconds = [sum(phases.total_s for phases in _of(part, found)) for part in _PARTS]
    mbytes = model.leaving_nbytes(found.name, found.num_ranks) / 1e6
    sent = f"{mbytes:,.0f}" if mbytes >= 100 else f"{mbytes:.3g}"
    return [sent, *(milliseconds(s) if s else "" for s in seconds)]


def _values(model: Model, found: Prediction) -> dict[str, Any]:
    return {
        "num_weights": model.shape.num_parameters,
        "backend": model.workload.backend,
        "efficiency": {kind: one.efficiency for kind, one in model.transports.items()},
        "leaving_nbytes": model.leaving_nbytes(found.name, found.num_ranks),
        **{
            part: {
                "payload_s": sum(phases.payload_s for phases in _of(part, found)),
                "coding_s": sum(phases.coding_s for phases in _of(part, found)),
            }
            for part in _PARTS
        },
    }


def _remark(model: Model, found: Prediction) -> str:
    is_plain = found.name != model.baseline and model.methods[found.name]
    return "in float32" if is_plain else ""


SHARDS_PLANNER: Final = Planner(
    name="shards",
    plans=_plans,
    keys=KEYS,
    choices=("codecs", "model", "wrapper"),
    fit=fit_rows,
    check=check,
    columns=("MB/node", "weights ms", "gradients ms"),
    cells=_cells,
    values=_values,
    remark=_remark,
)
