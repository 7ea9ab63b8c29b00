"""Rows of trainings by scheme: tables, goals, and what pages show of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from rich.table import Table

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow, TrainingRow, latest
from tersor.bench.core.tables import chosen, markdown_table, terminal_table
from tersor.bench.shards.accuracy import BASELINE, SUITE
from tersor.workloads.training.judgement import Interval

LOSS_COLUMNS: Final = ("model", "scheme", "seeds", "loss", "change %", "95 % ±", "ratio")
"""``docs/shards.md`` says what they mean."""
_MOST_CHANGE: Final = 0.3
_LEAST_HARM: Final = 3.0
_LEAST_SEEDS: Final = 3
_ASKED: Final = (("gpt-2M", 4, 300), ("gpt-125M", 8, 1500))
"""Models, ranks and steps that goals are asked of."""


@dataclass(frozen=True, slots=True)
class LossPlace:
    """Trainings that differ in scheme and seed alone.

    Attributes:
        model: that is trained.
        place: ranks and steps, in words.
        rows: by scheme, then by seed.
    """

    model: str
    place: str
    rows: Mapping[str, Mapping[int, TrainingRow]]

    @property
    def length(self) -> tuple[int, int]:
        """Ranks and steps of all trainings."""
        first = next(iter(next(iter(self.rows.values())).values())).training
        return first.num_ranks, first.steps

    def losses(self, scheme: str) -> list[float]:
        """Return the final loss of each seed."""
        return [_loss(row) for row in self.rows[scheme].values()]

    def seeds(self, scheme: str) -> list[int]:
        """Return the seeds that the scheme and ``exact`` were both trained with."""
        exact = self.rows.get(BASELINE, {})
        return [seed for seed in self.rows.get(scheme, {}) if seed in exact]

    def change(self, scheme: str) -> Interval | None:
        """Return the mean change of the loss against ``exact`` in percent, over ``seeds``.

        The interval of one seed alone is infinite.
        """
        exact, own = self.rows.get(BASELINE, {}), self.rows.get(scheme, {})
        pairs = [(_loss(own[seed]), _loss(exact[seed])) for seed in self.seeds(scheme)]
        return Interval.of([100 * (x / y - 1) for x, y in pairs]) if pairs else None

    def curve(self, scheme: str, seeds: Sequence[int] | None = None) -> list[tuple[float, float]]:
        """Return the mean loss of the seeds, of all if None, at each step that all of them have."""
        own = self.rows[scheme]
        chosen = [row for seed, row in own.items() if seeds is None or seed in seeds]
        points: dict[int, list[float]] = {}
        for row in chosen:
            for step, loss in row.training.curve:
                points.setdefault(step, []).append(loss)
        return [(step, fmean(x)) for step, x in sorted(points.items()) if len(x) == len(chosen)]

    def change_curve(self, scheme: str) -> list[tuple[float, float]]:
        """Return the change of the mean loss against ``exact`` in percent, over ``seeds``."""
        seeds = self.seeds(scheme)
        exact = dict(self.curve(BASELINE, seeds)) if seeds else {}
        points = self.curve(scheme, seeds)
        return [(step, 100 * (loss / exact[step] - 1)) for step, loss in points if step in exact]


def _loss(row: TrainingRow) -> float:
    return row.training.curve[-1][1]


def loss_places(rows: Iterable[ResultRow]) -> Iterator[LossPlace]:
    """Yield what can be compared with each other."""
    places: dict[str, dict[str, dict[int, TrainingRow]]] = {}
    for row in latest(rows):
        if isinstance(row, TrainingRow) and row.suite == SUITE:
            schemes = places.setdefault(_shared(row), {})
            schemes.setdefault(row.codec, {})[row.training.seed] = row
    for schemes in places.values():
        first = next(iter(next(iter(schemes.values())).values()))
        yield LossPlace(first.input, first.training.place, schemes)


def _shared(row: TrainingRow) -> str:
    """Return all that a training was told but its scheme and seed."""
    told: Mapping[str, object] = row.spec.get("training", {})
    options = {name: x for name, x in told.items() if name not in ("scheme", "seed")}
    facts = (row.input, row.device, row.training.data, row.training.place)
    return json.dumps([facts, options], sort_keys=True)


def loss_cells(rows: Iterable[ResultRow]) -> list[list[str]]:
    """Return what stands under ``LOSS_COLUMNS``, a line per scheme and place."""
    return [_cells(place, scheme) for place in loss_places(rows) for scheme in place.rows]


def _cells(place: LossPlace, scheme: str) -> list[str]:
    change = None if scheme == BASELINE else place.change(scheme)
    losses, num_pairs = place.losses(scheme), len(place.seeds(scheme))
    ratios = [row.ratio for row in place.rows[scheme].values() if row.encoded_nbytes]
    return [
        f"{place.model}, {place.place}",
        scheme,
        f"{num_pairs} of {len(losses)}" if 0 < num_pairs < len(losses) else str(len(losses)),
        f"{fmean(losses):.4f}",
        "" if change is None else f"{change.mean:+.2f}",
        "" if change is None or num_pairs < 2 else f"{change.half_width:.2f}",
        f"{fmean(ratios):.2f}" if ratios else "",
    ]


def losses_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the trainings that a page asks for."""
    return markdown_table(LOSS_COLUMNS, loss_cells(chosen(rows, options)))


def loss_table(rows: Iterable[ResultRow]) -> Table:
    """Show how every scheme changed the loss."""
    return terminal_table(
        "Validation loss by scheme, compared seed by seed with exact exchanges",
        LOSS_COLUMNS, loss_cells(rows), words=("model", "scheme"), section=slice(1),
    )  # fmt: skip


def loss_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge the full scheme, and what it is to be better than."""
    places = list(loss_places(rows))
    return [goal for asked in _ASKED for goal in _goals(places, *asked)]


def _goals(places: Iterable[LossPlace], model: str, num_ranks: int, steps: int) -> Iterator[Goal]:
    named = [place for place in places if (place.model, *place.length) == (model, num_ranks, steps)]
    for scheme, sign, target, words in (
        ("both", -1.0, -_MOST_CHANGE, f"both: loss at most {_MOST_CHANGE:g} % above exact"),
        ("direct", 1.0, _LEAST_HARM, f"direct: loss at least {_LEAST_HARM:g} % above exact"),
    ):
        # a single seed shows nothing: trainings that differ in rounding alone differ by as much
        found = [
            (sign * change.mean, f"{place.place}, {len(place.seeds(scheme))} seeds")
            for place in named
            if len(place.seeds(scheme)) >= _LEAST_SEEDS
            if (change := place.change(scheme)) is not None
        ]
        measured, detail = min(found, default=(None, "no such rows"))
        yield Goal(f"{model}, {words}", target, measured, detail)
