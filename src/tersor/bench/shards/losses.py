"""Tables, goals and page blocks of training runs by scheme."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Final

from rich.table import Table

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import chosen, markdown_table, terminal_table
from tersor.bench.core.training_place import EXACT, TrainingPlace, training_places
from tersor.bench.shards.accuracy import SUITE

LOSS_COLUMNS: Final = ("model", "scheme", "seeds", "loss", "change %", "95 % ±", "ratio")
"""The table columns; ``docs/shards.md`` explains them."""
_MOST_CHANGE: Final = 0.3
_LEAST_HARM: Final = 3.0
_LEAST_SEEDS: Final = 3
_ASKED: Final = (("gpt-2M", 4, 300), ("gpt-125M", 8, 1500))
"""The models, ranks and steps to which the goals apply."""


def loss_places(rows: Iterable[ResultRow]) -> Iterator[TrainingPlace]:
    """Group the training rows of this suite into comparable sets."""
    return training_places(rows, SUITE)


def loss_cells(rows: Iterable[ResultRow]) -> list[list[str]]:
    """Return the cells of ``LOSS_COLUMNS``, one line per scheme and place."""
    return [_cells(place, scheme) for place in loss_places(rows) for scheme in place.rows]


def _cells(place: TrainingPlace, scheme: str) -> list[str]:
    change = None if scheme == EXACT else place.change(scheme)
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
    """Return the Markdown table of the training runs that a page selects."""
    return markdown_table(LOSS_COLUMNS, loss_cells(chosen(rows, options)))


def loss_table(rows: Iterable[ResultRow]) -> Table:
    """Return a table of how every scheme changed the loss."""
    return terminal_table(
        "Validation loss by scheme, compared seed by seed with exact exchanges",
        LOSS_COLUMNS, loss_cells(rows), words=("model", "scheme"), section=slice(1),
    )  # fmt: skip


def loss_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge that ``both`` preserves the loss, and that ``direct`` harms it."""
    places = list(loss_places(rows))
    return [goal for asked in _ASKED for goal in _goals(places, *asked)]


def _goals(
    places: Iterable[TrainingPlace], model: str, num_ranks: int, steps: int
) -> Iterator[Goal]:
    named = [place for place in places if (place.model, *place.length) == (model, num_ranks, steps)]
    for scheme, sign, target, words in (
        ("both", -1.0, -_MOST_CHANGE, f"both: loss at most {_MOST_CHANGE:g} % above exact"),
        ("direct", 1.0, _LEAST_HARM, f"direct: loss at least {_LEAST_HARM:g} % above exact"),
    ):
        # a single seed proves nothing, because runs that differ only in rounding differ by as much
        found = [
            (sign * change.mean, f"{place.place}, {len(place.seeds(scheme))} seeds")
            for place in named
            if len(place.seeds(scheme)) >= _LEAST_SEEDS
            if (change := place.change(scheme)) is not None
        ]
        measured, detail = min(found, default=(None, "no such rows"))
        yield Goal(f"{model}, {words}", target, measured, detail)
