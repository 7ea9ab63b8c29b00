"""The report section about codecs: the smallest, the fastest, and the best per link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tersor.bench.core.rows import OperationRow, ResultRow
from tersor.bench.kernels import SUITES
from tersor.bench.report.codec_figures import codec_figures
from tersor.bench.report.links import Links, add_chooser, best_codecs
from tersor.bench.report.measured import (
    ComparisonKey,
    Measured,
    bounds_of,
    comparable,
    main_threads,
    measured,
)
from tersor.bench.report.rows_table import number_cell, rows_cells
from tersor.bench.report.runs import RowsRun, Run
from tersor.bench.report.section import Section


def rows_by_place(rows: Iterable[ResultRow]) -> dict[ComparisonKey, list[ResultRow]]:
    """Group codec rows into comparable sets, preserving their order."""
    found: dict[ComparisonKey, list[ResultRow]] = {}
    for row in rows:
        found.setdefault(ComparisonKey.of(row), []).append(row)
    return found


def _label(place: ComparisonKey, rows: Iterable[ResultRow]) -> str:
    """Describe the place and, on a device with two clocks, how its speeds were timed."""
    kinds = {row.timed_by for row in rows}
    clocks = {"loop": "in a loop of calls", "lead": "with a lead for the host"}
    return ", ".join([place.label, *(words for kind, words in clocks.items() if kind in kinds)])


def _sentence(rows: Sequence[ResultRow]) -> str:
    """Summarise the main place of a result file in one sentence."""
    place, own = next(iter(_main_places(rows).items()))
    shown, label = comparable(own), _label(place, own)
    bound = bounds_of(shown)[0]
    # a place may contain only programs that start from codes, which are not comparable
    found = measured(shown, bound, main_threads(shown)) if shown else []
    held = [one for one in found if not one.broken and one.ratio > 1]
    count = f"{len(rows):,} row" + "s" * (len(rows) > 1)
    if len(own) == 1 and own[0].note:
        return f"{count}; {own[0].codec} on {label}: {own[0].note}."
    if not held:
        return f"{count} on {label}."
    small = max(held, key=lambda one: one.ratio)
    fast = max(held, key=lambda one: one.encode_gbps)
    at = "" if bound is None else f" at the relative bound {bound:g}"
    return (
        f"{count}; on {label}{at}, {_named(small)} is smallest, "
        f"{small.ratio:.1f} times smaller than float32, and {_named(fast)} encodes fastest, at "
        f"{number_cell(fast.encode_gbps, 3)} GB/s."
    )


def _main_places(rows: Sequence[ResultRow]) -> dict[ComparisonKey, list[ResultRow]]:
    """Return the places, those with more than one row first."""
    places = rows_by_place(rows)
    return dict(sorted(places.items(), key=lambda pair: len(pair[1]) == 1))


def _named(one: Measured) -> str:
    return f"{one.codec} (a peer)" if one.peer else one.codec


def codecs_section(run: Run, links: Links) -> Section | None:
    """Return the section with the figures, the best codecs per link, and the rows of every place."""
    rows = run.rows if isinstance(run, RowsRun) else []
    rows = [row for row in rows if row.suite in SUITES and not isinstance(row, OperationRow)]
    if not rows:
        return None
    section = Section(_sentence(rows))
    for place, own in rows_by_place(rows).items():
        label = _label(place, own)
        section.heading(label)
        shown = comparable(own)
        if len(shown) > 1 and not place.is_file:
            section.show(*codec_figures(run.name, label, shown))
            _add_best(section, label, shown, links)
        section.table(f"All rows: {label}", *rows_cells(own))
    return section


def _add_best(section: Section, label: str, rows: Sequence[ResultRow], links: Links) -> None:
    """Add the codec chooser and the table of the predicted fastest codec per link."""
    bounds, threads = bounds_of(rows), main_threads(rows)
    at = label if bounds[0] is None else f"{label}, relative bound {bounds[0]:g}"
    add_chooser(section, at, measured(rows, bounds[0], threads), links)
    lines = [
        [f"{link:g}", "" if bound is None else f"{bound:g}", *_fastest_cells(one, gain)]
        for bound in bounds
        for link, one, gain in best_codecs(measured(rows, bound, threads), links)
    ]
    head = (
        "link Gbit/s", "bound", "fastest", "times float32", "ratio", "encode GB/s", "decode GB/s",
    )  # fmt: skip
    name = "Predicted fastest codec by link: sending, encoding and decoding"
    if lines:
        section.table(name, head, lines)


def _fastest_cells(one: Measured, gain: float) -> list[str]:
    """Return the cells of the fastest choice on a link: the best codec, or float32 if that is faster."""
    if gain <= 1:
        return [f"float32 as it is ({_named(one)} would reach {gain:.2f})", "1.00", "1.0", "", ""]
    speeds = (number_cell(gbps, 3) for gbps in (one.encode_gbps, one.decode_gbps))
    return [_named(one), f"{gain:.2f}", f"{one.ratio:.1f}", *speeds]
