"""Tables of fused operations, for a terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.table import Table

from tersor.bench.core.rows import OperationRow, ResultRow
from tersor.bench.core.tables import Cells, chosen, markdown_table, terminal_table

COLUMNS: Final = (
    "device", "MiB", "operation", "threads", "call us", "fp32 GB/s", "x memcpy", "of copy",
    "graph us", "graph of copy", "launches",
)  # fmt: skip
"""The table columns; ``docs/benchmarks.md`` explains them."""


def operation_rows(rows: Iterable[ResultRow]) -> list[OperationRow]:
    """Return the rows of fused operations."""
    return [row for row in rows if isinstance(row, OperationRow)]


def operation_cells(row: OperationRow) -> Cells:
    """Return the cells of ``COLUMNS`` for one row."""
    memcpy, graph_s = row.memcpy_gbps, row.operation.graph_s
    launches = None if row.num_launches is None else row.num_launches.get("call")
    return [
        row.device,
        f"{row.original_nbytes / 2**20:.0f}",
        row.codec,
        str(row.threads),
        _micros(row.encode_s.p50),
        f"{row.encode_gbps:.4g}",
        "" if memcpy is None else f"{row.encode_gbps / memcpy:.2f}",
        _share(row.ceiling_share),
        "" if graph_s is None else _micros(graph_s.p50),
        _share(row.graph_ceiling_share),
        "" if launches is None else str(launches),
    ]


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}"


def operation_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of all operations: time, speed and share in a loop, then as a CUDA graph."""
    lines = (operation_cells(row) for row in operation_rows(rows))
    title = "Fused operations on groups, as shards call them"
    return terminal_table(title, COLUMNS, lines, words=("device", "operation"), section=slice(0, 2))


def operations_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return the Markdown table of the operations that a page selects."""
    found = operation_rows(chosen(rows, options))
    return markdown_table(COLUMNS, (operation_cells(row) for row in found))
