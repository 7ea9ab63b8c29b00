"""Render look-up rows as tables for a terminal or a page, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import chosen, markdown_table
from tersor.bench.embeddings.lookups.sums import DumpResults, Sum, label, places
from tersor.workloads.network import Bandwidth

Bandwidths = Mapping[str, float]
"""Bandwidths in Gbit/s by the name of their link."""

ENCODER_COLUMNS: Final = (
    "encoder", "tables", "ratio", "encode GB/s", "decode GB/s", "error / bound", "pays up to",
)  # fmt: skip
TABLE_COLUMNS: Final = (
    "table", "bound", "rows", "distinct", "repeat", "entropy", "rows x", "LZ x", "Huff x", "gain",
)  # fmt: skip
BEST_COLUMNS: Final = ("ratio", "enc GB/s", "dec GB/s")
"""The table columns; ``docs/benchmark-embeddings.md`` explains them."""


def _speedup(total: Sum, bandwidth_gbit_s: float) -> str:
    return f"{total.speedup(bandwidth_gbit_s):.2f}" if total.is_predictable else ""


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _speeds(total: Sum) -> list[str]:
    """Format the encoding and decoding speeds; ``~`` marks times from a sample of the slices."""
    sampled = "~" if total.is_sampled else ""
    return [f"{sampled}{gbps:.2f}" for gbps in (total.encode_gbps, total.decode_gbps)]


def _sum_cells(name: str, total: Sum) -> list[str]:
    broken = "!" if total.has_broken else ""
    return [
        name,
        str(total.num_tables),
        f"{total.ratio:.2f}",
        # nothing is encoded if uncompressed float32 is the best choice for every table
        *(_speeds(total) if total.encode_s and total.has_speed else ("", "")),
        f"{total.error_share:.3f}{broken}" if total.is_end_to_end else "on codes",
        f"{_three_digits(total.pays_up_to_gbit_s)} Gbit/s"
        if total.is_predictable and total.encode_s
        else "",
    ]


def encoder_columns(bandwidths: Bandwidths) -> list[str]:
    """Return the column names of the table of encoders."""
    return [*ENCODER_COLUMNS, *(f"x at {name}" for name in bandwidths), "best on"]


def encoder_cells(place: DumpResults, bandwidths: Bandwidths) -> list[list[str]]:
    """Return one line per encoder over all tables, then one per link for our best per table."""
    first = next(iter(bandwidths.values()))
    winners = [place.best(table, first) for table in place.tables]
    names = [label(row) for row in winners if row is not None]
    lines = []
    for encoder in place.encoders:
        total = place.overall(encoder)
        speedups = [_speedup(total, gbit_s) for gbit_s in bandwidths.values()]
        count = names.count(encoder)
        lines.append([*_sum_cells(encoder, total), *speedups, str(count) if count else ""])
    for name, gbit_s in bandwidths.items():
        total = place.chosen(gbit_s)
        speedups = [_speedup(total, gbit_s) if one == name else "" for one in bandwidths]
        lines.append([*_sum_cells(f"best of ours per table, {name}", total), *speedups, ""])
    return lines


def table_columns(bandwidths: Bandwidths) -> list[str]:
    """Return the column names of the table of tables.

    The columns for ratio and speeds describe the best encoder at the first link.
    """
    return [*TABLE_COLUMNS, *(f"best at {name}" for name in bandwidths), *BEST_COLUMNS]


def table_cells(place: DumpResults, bandwidths: Bandwidths) -> list[list[str]]:
    """Return one line per table."""
    return [
        [*_fact_cells(place, table), *_best_cells(place, table, bandwidths)]
        for table in place.tables
    ]


def _fact_cells(place: DumpResults, table: int) -> list[str]:
    rows = place.tables[table].values()
    row = next(iter(rows))
    facts, gain = row.lookups, place.gain(table)
    ratios = ["" if ratio is None else f"{ratio:.1f}" for ratio in place.ratios(table)]
    return [
        str(table),
        _bound_cell(facts.table_class, rows),
        f"{facts.num_rows:,}",
        f"{facts.num_distinct:,}",
        f"{facts.repeated_share:.0%}",
        "" if row.entropy_bits is None else f"{row.entropy_bits:.2f}",
        *ratios,
        "" if gain is None else f"{gain:.2f}",
    ]


def _bound_cell(table_class: str, rows: Iterable[ResultRow]) -> str:
    """Describe a table's class and final bound, and whether the bound decayed from looser ones."""
    bounded = next((row for row in rows if row.relative_bound is not None), None)
    if bounded is None:
        return table_class
    decaying = ", decaying" if "decay" in bounded.spec else ""
    return f"{table_class} {bounded.relative_bound:g}{decaying}"


def _best_cells(place: DumpResults, table: int, bandwidths: Bandwidths) -> list[str]:
    best = {name: place.best(table, gbit_s) for name, gbit_s in bandwidths.items()}
    named = [
        "float32"
        if row is None
        else f"{label(row)} {place.sum_of([row]).speedup(bandwidths[name]):.2f}"
        for name, row in best.items()
    ]
    first = next(iter(best.values()))
    if first is None:
        return [*named, "", "", ""]
    total = place.sum_of([first])
    return [*named, f"{total.ratio:.1f}", *_speeds(total)]


def lookup_tables(
    rows: Iterable[ResultRow], bandwidths: Bandwidths, *, details: bool = False
) -> list[Table]:
    """Return the tables of every dump: its tables, its encoders and, optionally, all pairs of both."""
    encoders, tables = encoder_columns(bandwidths), table_columns(bandwidths)
    shown = []
    for place in places(rows):
        if details:
            shown += [
                _shown(f"Table {table} of {place.words}", encoders[:-1], lines)
                for table, lines in _detail_cells(place, bandwidths)
            ]
        every = table_cells(place, bandwidths), encoder_cells(place, bandwidths)
        shown += [
            _shown(f"Tables of {place.words}", tables, every[0]),
            _shown(f"All tables of {place.words}", encoders, every[1]),
        ]
    return shown


def _detail_cells(
    place: DumpResults, bandwidths: Bandwidths
) -> Iterable[tuple[int, list[list[str]]]]:
    for table, rows in place.tables.items():
        sums = {name: place.sum_of([row]) for name, row in rows.items()}
        lines = [
            [*_sum_cells(name, one), *(_speedup(one, gbit_s) for gbit_s in bandwidths.values())]
            for name, one in sums.items()
        ]
        yield table, lines


def _shown(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title)
    for name in columns:
        is_word = name in ("encoder", "bound") or name.startswith("best at")
        table.add_column(name, justify="left" if is_word else "right", no_wrap=is_word)
    for cells in lines:
        table.add_row(*cells)
    return table


def lookup_summary(rows: Iterable[ResultRow], bandwidths: Bandwidths) -> list[dict[str, Any]]:
    """Return JSON-ready totals of every encoder per dump, and the best encoder per table and link."""
    return [
        {
            "input": place.input,
            "device": place.device,
            "ranks": place.num_ranks,
            "repeat": place.repeat,
            "setting": place.setting,
            "encoders": {
                name: _numbers(place.overall(name), bandwidths) for name in place.encoders
            },
            "best_of_ours": {
                name: _numbers(place.chosen(gbit_s), {name: gbit_s})
                for name, gbit_s in bandwidths.items()
            },
            "best": {
                name: {str(table): _name(place.best(table, gbit_s)) for table in place.tables}
                for name, gbit_s in bandwidths.items()
            },
        }
        for place in places(rows)
    ]


def _name(best: ResultRow | None) -> str:
    return "float32" if best is None else label(best)


def _numbers(total: Sum, bandwidths: Bandwidths) -> dict[str, Any]:
    return {
        "tables": total.num_tables,
        "ratio": total.ratio,
        "encode_gbps": total.encode_gbps if total.has_speed else None,
        "decode_gbps": total.decode_gbps if total.has_speed else None,
        "sampled": total.is_sampled,
        "error_share": total.error_share if total.is_end_to_end else None,
        "speedup": {name: total.speedup(gbit_s) for name, gbit_s in bandwidths.items()}
        if total.is_predictable
        else None,
    }


def encoders_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the encoder tables of the dumps that a page selects; gains are predicted for ``link``."""
    return _block(rows, options, encoder_columns, encoder_cells)


def tables_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the per-table results of the dumps that a page selects; see ``encoders_block``."""
    return _block(rows, options, table_columns, table_cells)


def _block(
    rows: Iterable[ResultRow],
    options: Mapping[str, str],
    head: Callable[[Bandwidths], Sequence[str]],
    cells: Callable[[DumpResults, Bandwidths], list[list[str]]],
) -> str:
    links = options.get("link", "1gbit").split(",")
    bandwidths = {name: Bandwidth.parse(name).gbit_s for name in links}
    traits = {name: value for name, value in options.items() if name != "link"}
    found = places(chosen(rows, traits))
    made = (markdown_table(head(bandwidths), cells(place, bandwidths)) for place in found)
    return "\n\n".join(made)
