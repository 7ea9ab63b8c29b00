"""Goals for training steps whose saved tensors are compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tersor.bench.activations.contenders import LOSSLESS
from tersor.bench.activations.tables import StepGroup, score_of, step_groups
from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ActivationRow, ResultRow

_LEAST_SCORE: Final = 0.97
"""Required gradient score of ResNet34; contenders below it do not count."""
_LEAST_RATIO: Final = 10.0
"""Required ratio of a GPT; contenders below it do not count."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One goal, and the steps to which it applies."""

    name: str
    model: str
    device: str | None
    batch: int | None
    target: float
    value: Callable[[StepGroup, ActivationRow], float | None]
    counts: Callable[[ActivationRow], bool]
    at_most: bool = False


def _is_alike(row: ActivationRow) -> bool:
    return (score_of(row) or 0.0) >= _LEAST_SCORE


def _is_small(row: ActivationRow) -> bool:
    return row.ratio >= _LEAST_RATIO


def _floats_ratio(_group: StepGroup, row: ActivationRow) -> float | None:
    saved = row.activations.saved
    return None if saved is None else saved.floats_ratio


_ASKED: Final = (
    _Asked(
        "resnet34: 12 times on floats at score 0.97", "resnet34", None, None, 12.0, _floats_ratio,
        _is_alike,
    ),
    _Asked(
        "resnet34 at 224 pixels, batch 256: peak 5 times lower at score 0.97", "resnet34-224", "cuda", 256,
        5.0, StepGroup.peak_gain, _is_alike,
    ),
    _Asked(
        "resnet34 at 224 pixels, batch 256: step at most 15 % longer at score 0.97", "resnet34-224", "cuda",
        256, 15.0, StepGroup.overhead_percent, _is_alike, at_most=True,
    ),
    _Asked(
        "gpt-125M: step at most 20 % longer at 10 times", "gpt-125M", "cuda", None, 20.0,
        StepGroup.overhead_percent, _is_small, at_most=True,
    ),
    _Asked(
        "resnet34 on a CPU: peak 2 times lower at score 0.97", "resnet34", "cpu", None, 2.0,
        StepGroup.peak_gain, _is_alike,
    ),
)  # fmt: skip


def step_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge the goals for steps; our best contender decides."""
    groups = list(step_groups(rows))
    return [_goal(groups, asked) for asked in _ASKED]


def _goal(groups: Iterable[StepGroup], asked: _Asked) -> Goal:
    found = [
        (value, f"{row.codec} on {group.name}")
        for group in groups
        for row in group.rows.values()
        if not row.peer and row.codec != LOSSLESS and _is_asked(row, asked) and asked.counts(row)
        if (value := asked.value(group, row)) is not None
    ]
    measured, detail = (min if asked.at_most else max)(found, default=(None, "no such rows"))
    return Goal(asked.name, asked.target, measured, detail, asked.at_most)


def _is_asked(row: ActivationRow, asked: _Asked) -> bool:
    is_place = asked.batch in (None, row.activations.batch) and asked.device in (None, row.device)
    return row.input == asked.model and is_place
