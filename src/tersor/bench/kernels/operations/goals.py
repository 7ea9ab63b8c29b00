"""The goals of fused operations, judged by the time of a call in a loop.

On the CPU, shares are relative to memcpy in float32 values per second, with one thread. On CUDA, they are
relative to the device's copy in bytes moved per second, for at least 64 MiB of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tersor.bench.core.goal import Goal, RowLookup, worst
from tersor.bench.core.rows import OperationRow, ResultRow
from tersor.bench.kernels.operations.plan import OPERATIONS
from tersor.bench.kernels.operations.tables import operation_rows

_CPU_SHARE: Final = 0.30
_LEAST_NBYTES: Final = 64 * 2**20
_HADAMARD_SPEED: Final = 0.97
"""Required share of the speed of quantizing without Hadamard, which may cost up to 3 %."""
_FUSED: Final = {
    "differences": [name for name, one in OPERATIONS.items() if one.kind == "difference"],
    "additions": [name for name, one in OPERATIONS.items() if one.kind == "add"],
    "quantizing with Hadamard": [name for name in OPERATIONS if name.startswith("hadamard")],
    "sums": [name for name, one in OPERATIONS.items() if one.kind == "sum"],
    "requantized sums": [name for name, one in OPERATIONS.items() if one.kind == "requantize"],
}
"""All operations that do more than quantize, in families that are judged together."""
_DEVICE_SHARES: Final = (
    (
        "stochastic differences",
        0.90,
        [n for n in _FUSED["differences"] if OPERATIONS[n].stochastic],
    ),
    (
        "stochastic quantizing with Hadamard",
        0.90,
        [n for n in _FUSED["quantizing with Hadamard"] if OPERATIONS[n].stochastic],
    ),
    ("additions", 0.85, _FUSED["additions"]),
    ("requantized sums", 0.85, _FUSED["requantized sums"]),
)


def cpu_operation_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge every family on the CPU by its slowest operation with one thread."""
    lookup = RowLookup(operation_rows(rows))
    goals = []
    for family, names in _FUSED.items():
        pairs = ((row.memcpy_gbps, row) for row in _named(lookup, names))
        values = [(row.encode_gbps / memcpy, row) for memcpy, row in pairs if memcpy]
        name = f"{family} at {_CPU_SHARE:.2f} of memcpy speed"
        goals.append(worst(name, _CPU_SHARE, values, _name_and_size))
    return goals


def device_operation_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge shares of the copy ceiling on CUDA, and the cost of the Hadamard transform."""
    lookup = RowLookup([r for r in operation_rows(rows) if r.original_nbytes >= _LEAST_NBYTES])
    goals = []
    for family, target, names in _DEVICE_SHARES:
        pairs = ((row.ceiling_share, row) for row in _named(lookup, names))
        values = [(share, row) for share, row in pairs if share is not None]
        name = f"{family} at {target:.2f} of the copy ceiling, by bytes moved"
        goals.append(worst(name, target, values, _name_and_size))
    speeds = []
    for row in _named(lookup, _FUSED["quantizing with Hadamard"]):
        plain = lookup.counterpart(row, row.codec.replace("hadamard", "quantize"), peer=False)
        if plain is not None:
            speeds.append((plain.encode_s.p50 / row.encode_s.p50, row))
    name = f"quantizing with Hadamard at {_HADAMARD_SPEED:.2f} of its speed without"
    return [*goals, worst(name, _HADAMARD_SPEED, speeds, _name_and_size)]


def _named(lookup: RowLookup, names: Iterable[str]) -> list[OperationRow]:
    return operation_rows(row for name in names for row in lookup.ours(name))


def _name_and_size(row: OperationRow) -> str:
    return f"{row.codec}, {row.original_nbytes / 2**20:.0f} MiB"
