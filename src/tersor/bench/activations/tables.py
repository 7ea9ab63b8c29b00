"""Tables and page blocks of the rows of the ``activations`` suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from rich.console import RenderableType

from tersor.bench.activations.contenders import make_contender
from tersor.bench.core.rows import ActivationRow, ResultRow, latest
from tersor.bench.core.tables import chosen, markdown_table, terminal_table

STEP_COLUMNS: Final = (
    "step", "held as", "ratio", "of floats", "held MiB", "peak MiB", "peak x", "step ms", "overhead %",
    "score", "cosine",
)  # fmt: skip
"""The table columns; ``docs/benchmark-activations.md`` explains them."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The rows of all contenders on one model, batch and device, by contender name."""

    rows: Mapping[str, ActivationRow]

    @property
    def name(self) -> str:
        """Model, batch and device in words."""
        first = next(iter(self.rows.values()))
        facts = first.activations
        return f"{first.input}, batch {facts.batch}, {facts.dtype}, {first.device}"

    def baseline(self, row: ActivationRow) -> ActivationRow | None:
        """Return the baseline row for a row's times and peaks; None if it was not measured."""
        return self.rows.get(make_contender(row.codec).baseline)

    def peak_gain(self, row: ActivationRow) -> float | None:
        """Return the baseline's peak divided by this row's; None if either is missing."""
        theirs = self.baseline(row)
        own_peak, their_peak = _memory(row, "peak_nbytes"), _memory(theirs, "peak_nbytes")
        return their_peak / own_peak if own_peak and their_peak else None

    def overhead_percent(self, row: ActivationRow) -> float | None:
        """Return by how many percent a step takes longer than the baseline's."""
        theirs = self.baseline(row)
        if theirs is None:
            return None
        return 100 * (row.activations.step_s.p50 / theirs.activations.step_s.p50 - 1)


def score_of(row: ResultRow) -> float | None:
    """Return the gradient similarity index of a row, if it has one."""
    score = None if row.quality is None else row.quality.score
    return None if score is None else score.mean


def _memory(row: ActivationRow | None, name: Literal["held_nbytes", "peak_nbytes"]) -> int | None:
    if row is None or row.memory is None:
        return None
    found: int | None = getattr(row.memory, name)
    return found


def step_groups(rows: Iterable[ResultRow]) -> Iterator[StepGroup]:
    """Group step rows into comparable sets."""
    groups: dict[tuple[str | None, ...], dict[str, ActivationRow]] = {}
    for row in latest(rows):
        if isinstance(row, ActivationRow):
            group = groups.setdefault((row.input, row.device, row.group), {})
            group[row.codec] = row
    for found in groups.values():
        yield StepGroup(found)


def step_cells(rows: Iterable[ResultRow]) -> list[list[str]]:
    """Return the cells of ``STEP_COLUMNS``, one line per contender and model."""
    return [_cells(group, row) for group in step_groups(rows) for row in group.rows.values()]


def _cells(group: StepGroup, row: ActivationRow) -> list[str]:
    facts, score = row.activations, score_of(row)
    is_baseline = group.baseline(row) is row
    gain, overhead = group.peak_gain(row), group.overhead_percent(row)
    return [
        group.name,
        row.codec,
        f"{row.ratio:.2f}" if row.encoded_nbytes else "",
        f"{facts.saved.floats_ratio:.2f}" if facts.saved and facts.saved.held_floats_nbytes else "",
        _mib(_memory(row, "held_nbytes")),
        _mib(_memory(row, "peak_nbytes")),
        "" if is_baseline or gain is None else f"{gain:.2f}",
        f"{facts.step_s.p50 * 1e3:.2f}",
        "" if is_baseline or overhead is None else f"{overhead:+.1f}",
        "exact" if facts.is_exact else f"{score or 0.0:.4f}",
        "" if facts.is_exact else f"{facts.cosine:.4f}",
    ]


def _mib(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 2**20:.1f}"


def steps_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the Markdown table of the steps that a page selects."""
    return markdown_table(STEP_COLUMNS, step_cells(chosen(rows, options)))


def step_tables(rows: Iterable[ResultRow]) -> list[RenderableType]:
    """Return one table per model with bytes, memory, times and gradients of all contenders."""
    return [
        terminal_table(
            f"What waits for backward: {group.name}", STEP_COLUMNS[1:],
            [_cells(group, row)[1:] for row in group.rows.values()], words=STEP_COLUMNS[1:2],
        )
        for group in step_groups(rows)
    ]  # fmt: skip
