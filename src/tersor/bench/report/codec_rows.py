"""The section of a result file: sentence, figures, tables, environment and command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tersor.bench.core.rows import ResultRow
from tersor.bench.html import Page
from tersor.bench.report.codec_figures import codec_figures
from tersor.bench.report.links import Links, add_chooser, best_codecs
from tersor.bench.report.measured import (
    Measured,
    Place,
    bounds_of,
    comparable,
    main_threads,
    measured,
)

_HEAD_FIRST: Final = ("codec", "by", "ratio")


def rows_by_place(rows: Iterable[ResultRow]) -> dict[Place, list[ResultRow]]:
    """Return rows of codecs by what can be compared, in their order."""
    found: dict[Place, list[ResultRow]] = {}
    for row in rows:
        found.setdefault(Place.of(row), []).append(row)
    return found


def codec_sentence(rows: Sequence[ResultRow]) -> str:
    """Return what the first place of a result file shows, in one sentence."""
    place, own = next(iter(_main_places(rows).items()))
    shown = comparable(own)
    bounds: list[float | None] = [*bounds_of(shown)] or [None]
    # nothing is left of programs that started from codes
    found = measured(shown, bounds[0], main_threads(shown)) if shown else []
    held = [one for one in found if not one.broken and one.ratio > 1]
    count = f"{len(rows):,} row" + "s" * (len(rows) > 1)
    if len(own) == 1 and own[0].note:
        return f"{count}; {own[0].codec} on {place.label}: {own[0].note}."
    if not held:
        return f"{count} on {place.label}."
    small = max(held, key=lambda one: one.ratio)
    fast = max(held, key=lambda one: one.encode_gbps)
    at = "" if bounds[0] is None else f" at the relative bound {bounds[0]:g}"
    return (
        f"{count}; on {place.label}{at}, {_named(small)} is smallest, "
        f"{small.ratio:.1f} times smaller than float32, and {_named(fast)} encodes fastest, at "
        f"{_number(fast.encode_gbps, 3)} GB/s."
    )


def _main_places(rows: Sequence[ResultRow]) -> dict[Place, list[ResultRow]]:
    """Return the places with more than one row before the others."""
    places = rows_by_place(rows)
    return dict(sorted(places.items(), key=lambda pair: len(pair[1]) == 1))


def _named(one: Measured) -> str:
    return f"{one.codec} (a peer)" if one.peer else one.codec


def add_codec_rows(page: Page, run: str, rows: Sequence[ResultRow], links: Links) -> None:
    """Add a part per place: its figures, the codecs that suit each link, and all its rows."""
    for place, own in rows_by_place(rows).items():
        label = place.label
        page.heading(label)
        shown = comparable(own)
        if len(shown) > 1 and not place.is_file:
            page.show(*codec_figures(run, label, shown))
            _add_best(page, label, shown, links)
        page.table(f"All rows: {label}", *rows_cells(own))


def _add_best(page: Page, label: str, rows: Sequence[ResultRow], links: Links) -> None:
    """Add which codec is fastest on which link, and why."""
    bounds: list[float | None] = [*bounds_of(rows)] or [None]
    threads = main_threads(rows)
    at = label if bounds[0] is None else f"{label}, relative bound {bounds[0]:g}"
    add_chooser(page, at, measured(rows, bounds[0], threads), links)
    lines = [
        [f"{link:g}", "" if bound is None else f"{bound:g}", *_fastest_cells(one, gain)]
        for bound in bounds
        for link, one, gain in best_codecs(measured(rows, bound, threads), links)
    ]
    head = (
        "link Gbit/s",
        "bound",
        "fastest",
        "times float32",
        "ratio",
        "encode GB/s",
        "decode GB/s",
    )
    if lines:
        page.table("Predicted fastest codec by link: sending, encoding and decoding", head, lines)


def _fastest_cells(one: Measured, gain: float) -> list[str]:
    """Return what is fastest on a link: the best codec, or float32 where that would be slower."""
    if gain <= 1:
        return [f"float32 as it is ({_named(one)} would reach {gain:.2f})", "1.00", "1.0", "", ""]
    speeds = (_number(gbps, 3) for gbps in (one.encode_gbps, one.decode_gbps))
    return [_named(one), f"{gain:.2f}", f"{one.ratio:.1f}", *speeds]


def rows_cells(rows: Sequence[ResultRow]) -> tuple[list[str], list[list[str]]]:
    """Return head and cells of a table; columns that say nothing are left out."""
    columns = {name: [cell(row) for row in rows] for name, cell in _COLUMNS.items()}
    kept = {name: cells for name, cells in columns.items() if any(cells) or name in _HEAD_FIRST}
    for name, usual in (("threads", "1"), ("repeated", "1"), ("sampled", "1")):
        if name in kept and set(kept[name]) == {usual}:
            del kept[name]
    return list(kept), [list(line) for line in zip(*kept.values(), strict=True)]


def _number(value: float | None, digits: int = 4) -> str:
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
    return "" if number is None else _number(number / unit)


def _bits(row: ResultRow) -> str:
    return f"{8 * row.encoded_nbytes / row.num_values:.3f}" if row.num_values else ""


_COLUMNS: Final[Mapping[str, Callable[[ResultRow], str]]] = {
    "codec": lambda row: row.codec,
    "by": lambda row: "peer" if row.peer else "tersor",
    "table": lambda row: row.group or "",
    "bound": lambda row: _number(row.relative_bound),
    "threads": lambda row: str(row.threads),
    "ratio": lambda row: f"{row.ratio:.2f}",
    "bits per value": _bits,
    "encode GB/s": lambda row: _number(row.encode_gbps),
    "decode GB/s": lambda row: _number(row.decode_gbps),
    "encode of memcpy": lambda row: _share(row.encode_gbps, row.memcpy_gbps),
    "decode of memcpy": lambda row: _share(row.decode_gbps, row.memcpy_gbps),
    "encode of ceiling": lambda row: _of_ceiling(row, "encode"),
    "decode of ceiling": lambda row: _of_ceiling(row, "decode"),
    "error of bound": _of_bound,
    "entropy bits": lambda row: _number(row.entropy_bits),
    "distinct rows": lambda row: _number(row.distinct_rows),
    "launches encode": lambda row: _count(row.num_launches, "encode"),
    "launches decode": lambda row: _count(row.num_launches, "decode"),
    "MiB taken encode": lambda row: _count(row.workspace_nbytes, "encode", 2**20),
    "MiB taken decode": lambda row: _count(row.workspace_nbytes, "decode", 2**20),
    "extra MiB": lambda row: _number(
        None if row.peak_extra_nbytes is None else row.peak_extra_nbytes / 2**20
    ),
    "sampled": lambda row: f"{row.sampled_fraction:.3g}",
    "repeated": lambda row: str(row.repeat),
    "version": lambda row: row.version,
    "note": lambda row: row.note,
}
