"""Tables of codec and peer rows, for a terminal and for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from rich.console import RenderableType
from rich.table import Table

from tersor.bench.core.blocks import TITLES
from tersor.bench.core.goal import RowLookup
from tersor.bench.core.rows import OperationRow, ResultRow
from tersor.bench.core.tables import Cells, chosen, figure_cells, figure_names, markdown_table
from tersor.bench.kernels.operations.tables import operation_rows, operation_table

DEVICE_COLUMNS: Final = (
    "input", "codec", "bound", "ratio", "encode GB/s", "decode GB/s", "with lead GB/s", "of ceiling",
    "launches", "peak MiB", "peak x input",
)  # fmt: skip
"""The columns of an accelerator's table, which omits those that are empty in all rows;
``docs/performance.md`` explains them."""


def kernels_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of every row's ratio and speed, and its speed relative to memcpy and SZ3.

    Speeds are GB/s of raw float32. ``~`` marks speeds timed on a sample of the slices, and ``!`` marks a
    peer that broke its bound.
    """
    rows = list(rows)
    lookup = RowLookup(rows)
    columns = (
        "input", "codec", "bound", "threads", "ratio", "encode GB/s", "decode GB/s",
        "x memcpy enc", "x memcpy dec", "x SZ3 enc",
    )  # fmt: skip
    title = "Codecs and peers, end to end from and to float32"
    return _table(title, columns, 3, rows, lambda row: _kernels_cells(row, lookup))


def device_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of ratio, speed and footprint of every row measured on an accelerator.

    Speeds are GB/s of raw values; those of a loop of calls come first. The share is relative to the copy
    ceiling, by bytes read and written. Pairs are for encoding and decoding.
    """
    rows = list(rows)
    title = "Codecs and peers on CUDA, end to end from and to floats: in a loop, and with a lead"
    columns = _shown_columns(rows)
    return _table(title, list(columns.values()), 2, rows, lambda row: _cells_at(row, columns))


def _shown_columns(rows: Iterable[ResultRow]) -> dict[int, str]:
    """Return the columns of an accelerator's table that any row fills, by their index."""
    lines = [device_cells(row) for row in rows]
    return {k: name for k, name in enumerate(DEVICE_COLUMNS) if any(line[k] for line in lines)}


def _cells_at(row: ResultRow, places: Iterable[int]) -> Cells:
    cells = device_cells(row)
    return [cells[k] for k in places]


def _table(
    title: str,
    columns: Sequence[str],
    num_left: int,
    rows: list[ResultRow],
    cells: Callable[[ResultRow], Cells],
) -> Table:
    """Return a table with a section per input and bound; ``num_left`` columns are left-aligned."""
    names = figure_names(rows)
    table = Table(title=title)
    for k, name in enumerate((*columns, *(TITLES[name] for name in names))):
        table.add_column(name, justify="left" if k < num_left else "right")
    for _, same in groupby(rows, lambda row: (row.input, row.num_values, row.relative_bound)):
        for row in same:
            table.add_row(*cells(row), *figure_cells(row, names))
        table.add_section()
    return table


def device_cells(row: ResultRow) -> Cells:
    """Return the cells of ``DEVICE_COLUMNS`` for one row.

    If a row's own times are by the lead clock, its speeds appear only in the column for those.
    """
    is_own, lead = row.timed_by != "lead", row.lead_times
    broken = "!" if row.bound_held is False else ""
    ceiling = row.ceiling_gbps
    # rows without memcpy start from codes, so they move fewer bytes than their GB/s suggest
    has_share = ceiling is not None and row.memcpy_gbps is not None
    shares = [row.moved_gbps(s) / (ceiling or 1) for s in (row.encode_s, row.decode_s)]
    return [
        f"{row.input} {row.original_nbytes / 2**20:.0f} MiB",
        f"{row.codec} (peer)" if row.peer else row.codec,
        "" if row.relative_bound is None else f"{row.relative_bound:g}{broken}",
        f"{row.ratio:.2f}",
        f"{row.encode_gbps:.0f}" if is_own else "",
        f"{row.decode_gbps:.0f}" if is_own else "",
        "" if lead is None else f"{row.gbps(lead.encode_s):.0f} / {row.gbps(lead.decode_s):.0f}",
        " / ".join(f"{share:.0%}" for share in shares) if has_share else "",
        _pair(row.num_launches, 1),
        _pair(row.workspace_nbytes, 2**20),
        _pair(row.workspace_nbytes, max(1, row.original_nbytes), digits=2),
    ]


def _pair(numbers: Mapping[str, int] | None, unit: int, digits: int = 0) -> str:
    if numbers is None:
        return ""
    texts = (numbers.get(name) for name in ("encode", "decode"))
    return " / ".join("?" if n is None else f"{n / unit:.{digits}f}" for n in texts)


def _kernels_cells(row: ResultRow, lookup: RowLookup) -> Cells:
    sampled = "~" if row.sampled_fraction < 1 else ""
    broken = "!" if row.bound_held is False else ""
    memcpy = row.memcpy_gbps
    # rows without memcpy start from codes, so they do not compare with rows that start from float32
    sz3 = None if memcpy is None else lookup.counterpart(row, "sz3", peer=True)
    return [
        row.input,
        f"{row.codec} [dim](peer)[/dim]" if row.peer else f"[bold]{row.codec}[/bold]",
        "" if row.relative_bound is None else f"{row.relative_bound:g}{broken}",
        str(row.threads),
        f"{row.ratio:.2f}",
        f"{sampled}{row.encode_gbps:.2f}",
        f"{sampled}{row.decode_gbps:.2f}",
        "" if memcpy is None else f"{row.encode_gbps / memcpy:.2f}",
        "" if memcpy is None else f"{row.decode_gbps / memcpy:.2f}",
        "" if sz3 is None else f"{row.encode_gbps / sz3.encode_gbps:.1f}",
    ]


def kernels_tables(rows: Sequence[ResultRow]) -> list[RenderableType]:
    """Return one table for each device with codec rows, and one of fused operations if there are any."""
    tables: list[RenderableType] = []
    for table, is_device in ((kernels_table, False), (device_table, True)):
        measured = [r for r in rows if r.suite == "kernels" and (r.device == "cuda") == is_device]
        if measured:
            tables.append(table(measured))
    if operation_rows(rows):
        tables.append(operation_table(rows))
    return tables


def rows_block(rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    """Return the Markdown table of the codec and peer rows that a page selects."""
    rows = [row for row in chosen(rows, options) if not isinstance(row, OperationRow)]
    names, columns = figure_names(rows), _shown_columns(rows)
    return markdown_table(
        [*columns.values(), *(TITLES[name] for name in names)],
        ([*_cells_at(row, columns), *figure_cells(row, names)] for row in rows),
    )
