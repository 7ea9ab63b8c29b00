"""Tables, goals and page blocks of training runs with compressed activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from rich.table import Table

from tersor.bench.activations.accuracy import SUITE
from tersor.bench.activations.tables import score_of
from tersor.bench.core.activation_facts import SavedBytes
from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow, TrainingRow
from tersor.bench.core.tables import chosen, markdown_table, terminal_table
from tersor.bench.core.training_place import EXACT, TrainingPlace, training_places

TRAINING_COLUMNS: Final = (
    "training", "held as", "seeds", "ratio", "of floats", "score", "loss", "change %", "accuracy %",
    "change", "95 % ±",
)  # fmt: skip
"""The table columns; ``docs/benchmark-activations.md`` explains them."""
_LEAST_SEEDS: Final = 3


def activation_trainings(rows: Iterable[ResultRow]) -> Iterator[TrainingPlace]:
    """Group the training rows of this suite into comparable sets."""
    return training_places(rows, SUITE)


def mean_score(place: TrainingPlace, setting: str) -> float | None:
    """Return the mean score over seeds; None if it was not measured."""
    scores = [score_of(row) for row in place.rows[setting].values()]
    known = [score for score in scores if score is not None]
    return fmean(known) if known else None


def mean_ratio(
    place: TrainingPlace, setting: str, of: Callable[[SavedBytes], float]
) -> float | None:
    """Return the mean over seeds of the ratio ``of``; None if nothing was compressed."""
    saved = [row.training.saved for row in place.rows[setting].values()]
    known = [of(one) for one in saved if one is not None]
    return fmean(known) if known else None


def all_ratio(saved: SavedBytes) -> float:
    """Return the ratio of all tensors."""
    return saved.ratio


def floats_ratio(saved: SavedBytes) -> float:
    """Return the ratio of floating-point tensors."""
    return saved.floats_ratio


def training_cells(rows: Iterable[ResultRow]) -> list[list[str]]:
    """Return the cells of ``TRAINING_COLUMNS``, one line per setting and place."""
    return [_cells(place, one) for place in activation_trainings(rows) for one in place.rows]


def _cells(place: TrainingPlace, setting: str) -> list[str]:
    is_exact = setting == EXACT
    change = None if is_exact else place.change(setting)
    points = None if is_exact else place.accuracy_change(setting)
    accuracies, num_pairs = place.accuracies(setting), len(place.seeds(setting))
    judged = change if points is None else points
    return [
        named(place),
        setting,
        str(len(place.rows[setting])),
        _number(mean_ratio(place, setting, all_ratio), ".2f"),
        _number(mean_ratio(place, setting, floats_ratio), ".2f"),
        _number(mean_score(place, setting), ".4f"),
        f"{fmean(place.losses(setting)):.4f}",
        _number(None if change is None else change.mean, "+.2f"),
        _number(100 * fmean(accuracies) if accuracies else None, ".2f"),
        _number(None if points is None else points.mean, "+.2f"),
        _number(None if judged is None or num_pairs < 2 else judged.half_width, ".2f"),
    ]


def named(place: TrainingPlace) -> str:
    """Describe the model, the form of a graph's matrix if there is one, and the number of steps."""
    facts, form = _first(place).training, _training_options(place).get("form")
    model = place.model if form is None else f"{place.model} ({form})"
    return f"{model}, {facts.steps} step{'s' * (facts.steps != 1)} of {facts.batch}"


def _first(place: TrainingPlace) -> TrainingRow:
    return next(iter(next(iter(place.rows.values())).values()))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def trainings_block(rows: Iterable[ResultRow], options: Mapping[str, str]) -> str:
    """Return the Markdown table of the training runs that a page selects."""
    return markdown_table(TRAINING_COLUMNS, training_cells(chosen(rows, options)))


def training_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of what every setting held, and its effect on loss and accuracy."""
    return terminal_table(
        "Trainings with compressed activations, compared seed by seed with exact ones", TRAINING_COLUMNS,
        training_cells(rows), words=TRAINING_COLUMNS[:2], section=slice(1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """A ratio that some setting of a model should reach without harming the result.

    Attributes:
        name: the goal in words.
        model: name of the trained model.
        target: the required ratio.
        of: which ratio is required.
        most_percent: largest accepted rise of the loss in percent; None if accuracy decides.
        most_points: largest accepted fall of accuracy in percentage points; None if loss decides.
        least_score: smallest accepted gradient score.
    """

    name: str
    model: str
    target: float
    of: Callable[[SavedBytes], float] = all_ratio
    most_percent: float | None = None
    most_points: float | None = None
    least_score: float = 0.0


_ASKED: Final = (
    _Asked("alexnet: 15 times on floats within 0.5 points", "alexnet", 15.0, floats_ratio, most_points=0.5),
    _Asked("alexnet: 10 times on all within 0.5 points", "alexnet", 10.0, most_points=0.5),
    _Asked(
        "resnet34: 12 times on floats at score 0.97 within 0.5 points", "resnet34", 12.0, floats_ratio,
        most_points=0.5, least_score=0.97,
    ),
    _Asked("gpt-10M: 10 times within 1 %", "gpt-10M", 10.0, most_percent=1.0),
    _Asked("gpt-10M: 8 times within 0.3 %", "gpt-10M", 8.0, most_percent=0.3),
    _Asked("gpt-125M: 10 times within 1 %", "gpt-125M", 10.0, most_percent=1.0),
    _Asked("gpt-125M: 8 times within 0.3 %", "gpt-125M", 8.0, most_percent=0.3),
    _Asked("gcn: 8 times within 0.5 points", "gcn", 8.0, most_points=0.5),
)  # fmt: skip


def training_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge each goal by the largest ratio of a harmless setting, over at least three seeds.

    Ratios of a model that computes in bfloat16 are doubled, because the targets are relative to float32.
    """
    places = list(activation_trainings(rows))
    return [_goal(places, asked) for asked in _ASKED]


def _goal(places: Iterable[TrainingPlace], asked: _Asked) -> Goal:
    judged = [
        (place, setting)
        for place in places
        for setting in place.rows
        if place.model == asked.model and setting != EXACT
        if len(place.seeds(setting)) >= _LEAST_SEEDS
    ]
    if not judged:
        return Goal(asked.name, asked.target, None, "no such rows")
    found = [
        (_against_fp32(place) * ratio, f"{setting}, {named(place)}")
        for place, setting in judged
        if _is_harmless(place, setting, asked)
        if (ratio := mean_ratio(place, setting, asked.of)) is not None
    ]
    return Goal(asked.name, asked.target, *max(found, default=(0.0, "no setting does no harm")))


def _against_fp32(place: TrainingPlace) -> float:
    return 2.0 if _training_options(place).get("dtype") == "bf16" else 1.0


def _training_options(place: TrainingPlace) -> Mapping[str, Any]:
    """Return the training options of a place, as recorded in its first row."""
    found: Mapping[str, Any] = _first(place).spec.get("training", {})
    return found


def _is_harmless(place: TrainingPlace, setting: str, asked: _Asked) -> bool:
    if (mean_score(place, setting) or 0.0) < asked.least_score:
        return False
    change, points = place.change(setting), place.accuracy_change(setting)
    if asked.most_points is not None:
        return points is not None and points.mean >= -asked.most_points
    return (
        asked.most_percent is not None and change is not None and change.mean <= asked.most_percent
    )
