"""A table of result rows with every figure that any of them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tersor.bench.core.blocks import TITLES, shown
from tersor.bench.core.rows import ResultRow

_HEAD_FIRST: Final = ("codec", "by", "ratio")


def rows_cells(rows: Sequence[ResultRow]) -> tuple[list[str], list[list[str]]]:
    """Return the column names and cells of a table; columns without information are omitted."""
    columns = {name: [cell(row) for row in rows] for name, cell in _COLUMNS.items()}
    informative = {
        name: cells for name, cells in columns.items() if any(cells) or name in _HEAD_FIRST
    }
    for name, usual in (("threads", "1"), ("repeated", "1"), ("sampled", "1")):
        if name in informative and set(informative[name]) == {usual}:
            del informative[name]
    return list(informative), [list(line) for line in zip(*informative.values(), strict=True)]


def number_cell(value: float | None, digits: int = 4) -> str:
    """Format a number with few digits; empty if it is None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.{digits}g}"


def _share(value: float, of: float | None) -> str:
    return "" if not of else f"{value / of:.3f}"


def _of_ceiling(row: ResultRow, direction: str) -> str:
    if row.memcpy_gbps is None or not row.ceiling_gbps:
        return ""
    seconds = row.encode_s if direction == "encode" else row.decode_s
    return f"{row.moved_gbps(seconds) / row.ceiling_gbps:.3f}"


def _of_bound(row: ResultRow) -> str:
    if row.worst_error is None or not row.error_bound:
        return ""
    mark = "!" if row.bound_held is False else ""
    return f"{row.worst_error / row.error_bound:.4f}{mark}"


def _count(numbers: Mapping[str, int] | None, direction: str, unit: float = 1) -> str:
    number = None if numbers is None else numbers.get(direction)
    return "" if number is None else number_cell(number / unit)


def _of_input(row: ResultRow, direction: str) -> str:
    number = None if row.workspace_nbytes is None else row.workspace_nbytes.get(direction)
    return "" if number is None else f"{number / max(1, row.original_nbytes):.3f}"


def _with_lead(row: ResultRow, direction: str) -> str:
    lead = row.lead_times
    return "" if lead is None else number_cell(row.gbps(getattr(lead, f"{direction}_s")))


def _bits(row: ResultRow) -> str:
    return f"{8 * row.encoded_nbytes / row.num_values:.3f}" if row.num_values else ""


def _figure(row: ResultRow, name: str) -> str:
    figures = row.figures()
    return shown(name, figures[name]) if name in figures else ""


_COLUMNS: Final[Mapping[str, Callable[[ResultRow], str]]] = {
    "codec": lambda row: row.codec,
    "by": lambda row: "peer" if row.peer else "tersor",
    "table": lambda row: row.group or "",
    "bound": lambda row: number_cell(row.relative_bound),
    "threads": lambda row: str(row.threads),
    "ratio": lambda row: f"{row.ratio:.2f}",
    "bits per value": _bits,
    "encode GB/s": lambda row: "" if row.timed_by == "lead" else number_cell(row.encode_gbps),
    "decode GB/s": lambda row: "" if row.timed_by == "lead" else number_cell(row.decode_gbps),
    "encode GB/s with lead": lambda row: _with_lead(row, "encode"),
    "decode GB/s with lead": lambda row: _with_lead(row, "decode"),
    "encode of memcpy": lambda row: _share(row.encode_gbps, row.memcpy_gbps),
    "decode of memcpy": lambda row: _share(row.decode_gbps, row.memcpy_gbps),
    "encode of ceiling": lambda row: _of_ceiling(row, "encode"),
    "decode of ceiling": lambda row: _of_ceiling(row, "decode"),
    "error of bound": _of_bound,
    "entropy bits": lambda row: number_cell(row.entropy_bits),
    "distinct rows": lambda row: number_cell(row.distinct_rows),
    "launches encode": lambda row: _count(row.num_launches, "encode"),
    "launches decode": lambda row: _count(row.num_launches, "decode"),
    "MiB taken encode": lambda row: _count(row.workspace_nbytes, "encode", 2**20),
    "MiB taken decode": lambda row: _count(row.workspace_nbytes, "decode", 2**20),
    "x input taken encode": lambda row: _of_input(row, "encode"),
    "x input taken decode": lambda row: _of_input(row, "decode"),
    "extra MiB": lambda row: number_cell(
        None if row.peak_extra_nbytes is None else row.peak_extra_nbytes / 2**20
    ),
    **{title: partial(_figure, name=name) for name, title in TITLES.items()},
    "sampled": lambda row: f"{row.sampled_fraction:.3g}",
    "repeated": lambda row: str(row.repeat),
    "version": lambda row: row.version,
    "note": lambda row: row.note,
}
