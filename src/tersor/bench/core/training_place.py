"""Compare training runs that differ only in setting and seed, seed by seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from tersor.bench.core.rows import ResultRow, TrainingRow, latest
from tersor.workloads.training.judgement import Interval

EXACT: Final = "exact"
"""The setting with which the others are compared."""
_SETTINGS: Final = ("scheme", "activations", "seed")
"""Options in which comparable training runs may differ."""


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """Training runs that differ only in setting and seed.

    Attributes:
        model: name of the trained model.
        place: ranks and steps, in words.
        rows: rows by setting, then by seed.
    """

    model: str
    place: str
    rows: Mapping[str, Mapping[int, TrainingRow]]

    @property
    def length(self) -> tuple[int, int]:
        """The number of ranks and of steps, equal in all runs."""
        first = next(iter(next(iter(self.rows.values())).values())).training
        return first.num_ranks, first.steps

    def losses(self, setting: str) -> list[float]:
        """Return the final loss of each seed."""
        return [_loss(row) for row in self.rows[setting].values()]

    def seeds(self, setting: str) -> list[int]:
        """Return the seeds with which both the setting and ``exact`` were trained."""
        exact = self.rows.get(EXACT, {})
        return [seed for seed in self.rows.get(setting, {}) if seed in exact]

    def change(self, setting: str) -> Interval | None:
        """Return the mean change of the final loss relative to ``exact`` in percent, over ``seeds``.

        With a single seed, the interval is infinite. Without common seeds, the result is None.
        """
        exact, own = self.rows.get(EXACT, {}), self.rows.get(setting, {})
        pairs = [(_loss(own[seed]), _loss(exact[seed])) for seed in self.seeds(setting)]
        return Interval.of([100 * (x / y - 1) for x, y in pairs]) if pairs else None

    def accuracies(self, setting: str) -> list[float]:
        """Return the final accuracy of each seed that has one, as a fraction."""
        found = (_accuracy(row) for row in self.rows[setting].values())
        return [accuracy for accuracy in found if accuracy is not None]

    def accuracy_change(self, setting: str) -> Interval | None:
        """Return the mean change of accuracy from ``exact`` in percentage points; see ``change``."""
        exact, own = self.rows.get(EXACT, {}), self.rows.get(setting, {})
        pairs = [(_accuracy(own[seed]), _accuracy(exact[seed])) for seed in self.seeds(setting)]
        points = [100 * (x - y) for x, y in pairs if x is not None and y is not None]
        return Interval.of(points) if points else None

    def curve(self, setting: str, seeds: Sequence[int] | None = None) -> list[tuple[float, float]]:
        """Return the mean loss over ``seeds`` (None means all) at each step that all of them have."""
        own = self.rows[setting]
        chosen = [row for seed, row in own.items() if seeds is None or seed in seeds]
        points: dict[int, list[float]] = {}
        for row in chosen:
            for step, loss in row.training.curve:
                points.setdefault(step, []).append(loss)
        return [(step, fmean(x)) for step, x in sorted(points.items()) if len(x) == len(chosen)]

    def change_curve(self, setting: str) -> list[tuple[float, float]]:
        """Return the change of the mean loss relative to ``exact`` in percent at each common step."""
        seeds = self.seeds(setting)
        exact = dict(self.curve(EXACT, seeds)) if seeds else {}
        points = self.curve(setting, seeds)
        return [(step, 100 * (loss / exact[step] - 1)) for step, loss in points if step in exact]


def _loss(row: TrainingRow) -> float:
    return row.training.curve[-1][1]


def _accuracy(row: TrainingRow) -> float | None:
    accuracy = None if row.quality is None else row.quality.accuracy
    return None if accuracy is None else accuracy.mean


def training_places(rows: Iterable[ResultRow], suite: str) -> Iterator[TrainingPlace]:
    """Group the training rows of a suite into comparable sets."""
    places: dict[str, dict[str, dict[int, TrainingRow]]] = {}
    for row in latest(rows):
        if isinstance(row, TrainingRow) and row.suite == suite:
            settings = places.setdefault(_shared(row), {})
            settings.setdefault(row.codec, {})[row.training.seed] = row
    for settings in places.values():
        first = next(iter(next(iter(settings.values())).values()))
        yield TrainingPlace(first.input, first.training.place, settings)


def _shared(row: TrainingRow) -> str:
    """Return a key of all options and facts of a training run except its setting and seed."""
    recorded: Mapping[str, object] = row.spec.get("training", {})
    options = {name: x for name, x in recorded.items() if name not in _SETTINGS}
    facts = (row.input, row.device, row.training.data, row.training.place)
    return json.dumps([facts, options], sort_keys=True)
