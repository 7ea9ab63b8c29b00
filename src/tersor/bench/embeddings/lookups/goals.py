"""The goals for look-ups: ratio over all tables, and gain per table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import LookupRow, ResultRow
from tersor.bench.embeddings.lookups.sums import OURS, DumpResults, counted, places
from tersor.sites.embeddings import ClassBounds

_MOSTLY_REPEATED: Final = 0.5
"""Share of repeated rows from which a table counts for the second, narrower goal. We chose it after seeing
results; the first goal counts every table that repeats a row."""
_GOAL_RATIO, _GOAL_GAIN = 15.0, 1.8


def lookup_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals of look-ups at the default bounds; dumps with repeated rows are not judged."""
    goals = []
    found = places(rows)
    inputs = [place.input for place in found]
    for place in found:
        if place.repeat == 1 and _has_default_bounds(place.tables):
            # one dump may be measured with several cuts, settings or devices
            name = place.input if inputs.count(place.input) == 1 else place.words
            goals += [_ratio_goal(place, name), *_gain_goals(place, name)]
    return goals or [Goal("forward ratio 15 over all tables", _GOAL_RATIO, None, "no such rows")]


def _has_default_bounds(tables: Mapping[int, Mapping[str, LookupRow]]) -> bool:
    default = ClassBounds()
    bounded = [row for rows in tables.values() for row in rows.values() if row.relative_bound]
    return all(
        row.relative_bound == getattr(default, row.lookups.table_class) and "decay" not in row.spec
        for row in bounded
    )


def _ratio_goal(place: DumpResults, of: str) -> Goal:
    name = f"forward ratio 15 over all tables of {of}"
    sums = {one: place.overall(one) for one in OURS if one in place.encoders}
    whole = {one: s for one, s in sums.items() if s.num_tables == len(place.tables)}
    if not whole:
        return Goal(name, _GOAL_RATIO, None, "no such rows")
    best = max(whole, key=lambda one: whole[one].ratio)
    return Goal(
        name, _GOAL_RATIO, whole[best].ratio, f"{best}, {counted(len(place.tables), 'table')}"
    )


def _gain_goals(place: DumpResults, of: str) -> list[Goal]:
    """Judge all tables that repeat any row, and then only those that repeat at least half of them."""
    gains: dict[int, tuple[float, float]] = {}
    for table, rows in place.tables.items():
        gain = place.gain(table)
        share = next(iter(rows.values())).lookups.repeated_share
        if gain is not None and share > 0:
            gains[table] = share, gain
    mostly = {table: pair for table, pair in gains.items() if pair[0] >= _MOSTLY_REPEATED}
    name = "rows 1.8 x plain LZ and Huffman, every table that"
    return [
        _gain_goal(f"{name} repeats rows, {of}", gains),
        _gain_goal(f"{name} repeats half its rows, {of}", mostly),
    ]


def _gain_goal(name: str, gains: Mapping[int, tuple[float, float]]) -> Goal:
    if not gains:
        return Goal(name, _GOAL_GAIN, None, "no such rows")
    worst = min(gains, key=lambda table: gains[table][1])
    num_met = sum(gain >= _GOAL_GAIN for _, gain in gains.values())
    detail = f"{num_met} of {len(gains)} tables reach it; worst is table {worst}"
    return Goal(name, _GOAL_GAIN, gains[worst][1], detail)
