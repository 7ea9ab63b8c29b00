"""The report sections about exchanging weights and gradients between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from tersor.bench.core.rows import ShardRow
from tersor.bench.core.training_place import EXACT, TrainingPlace
from tersor.bench.plots import Bar, bar_chart, line_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links
from tersor.bench.report.runs import RowsRun, Run
from tersor.bench.report.section import Section
from tersor.bench.shards.contenders import GLOO_NOTE, OURS
from tersor.bench.shards.losses import LOSS_COLUMNS, loss_cells, loss_places
from tersor.bench.shards.tables import SHARD_COLUMNS, shard_cells, shard_places


def shards_section(run: Run, _links: Links) -> Section | None:
    """Return the section with tokens per second of every method and network, and all times and bits."""
    found = run.rows if isinstance(run, RowsRun) else []
    rows = [row for row in found if isinstance(row, ShardRow)]
    if not rows:
        return None
    section = Section(_sentence(rows)).heading("Weights and gradients between ranks")
    section.text(
        f"Bits are those that the nodes' links counted. {GLOO_NOTE[0].upper()}{GLOO_NOTE[1:]}."
    )
    section.show(*_figures(run.name, rows))
    head = [*SHARD_COLUMNS[:5], "exchange x fp32", *SHARD_COLUMNS[6:8], "tokens x fp32", "loss"]
    return section.table("Exchanges and steps", head, shard_cells(rows))


def _sentence(rows: Sequence[ShardRow]) -> str:
    gains = [
        (gain, row.codec, row.shards.place, row.input)
        for place in shard_places(rows)
        for row in place.rows.values()
        if row.codec in OURS and (gain := place.gain(row, "step")) is not None
    ]
    start = f"{len(rows):,} rows of trainings that exchange weights and gradients"
    if not gains:
        return f"{start}."
    gain, name, place, model = max(gains)
    return (
        f"{start}; of ours, {name} gains most: {gain:.2f} times the tokens per second of float32 with "
        f"{model} on {place}."
    )


def _figures(run: str, rows: Sequence[ShardRow]) -> list[Figure]:
    figures: list[Figure] = []
    for place in shard_places(rows):
        first = next(iter(place.rows.values()))
        named = f"{first.input}, {first.shards.place}, batch {first.shards.batch}"
        bars = [Bar(name, row.shards.tokens_per_s) for name, row in place.rows.items()]
        svg = bar_chart(f"Training speed: {named}", "tokens per second", bars)
        caption = "Median of the slowest rank's steps."
        figures.append(Figure(slug(run, "tokens", named), svg, caption, bool(figures)))
    return figures


def losses_section(run: Run, _links: Links) -> Section | None:
    """Return the section with loss curves, their change from exact ones, and final losses."""
    rows = run.rows if isinstance(run, RowsRun) else []
    places = list(loss_places(rows))
    if not places:
        return None
    section = Section(" ".join(_loss_sentence(place) for place in places))
    section.heading("Loss by scheme")
    for place in places:
        section.show(*_loss_figures(run.name, place))
    return section.table("Validation loss at the end", LOSS_COLUMNS, loss_cells(rows))


def _loss_sentence(place: TrainingPlace) -> str:
    said = []
    for scheme in place.rows:
        change = None if scheme == EXACT else place.change(scheme)
        if change is not None:
            said.append(f"{scheme} {change.mean:+.2f} %")
    words = (
        f"change of the loss against exact exchanges: {', '.join(said)}" if said else "exact only"
    )
    return f"{place.model}, {place.place}: {words}."


def _loss_figures(run: str, place: TrainingPlace) -> list[Figure]:
    named = f"{place.model}, {place.place}"
    curves = {scheme: place.curve(scheme) for scheme in place.rows}
    changes = {scheme: place.change_curve(scheme) for scheme in curves if scheme != EXACT}
    means = "Mean over seeds, on the validation text."
    return [
        Figure(
            slug(run, "loss", named),
            line_chart(f"Loss: {named}", "step", curves, y_label="loss", dashed=[EXACT]),
            means,
        ),
        Figure(
            slug(run, "loss-change", named),
            line_chart(
                f"Change of the loss: {named}", "step", changes, y_label="change in %",
                level=(0.0, "exact"),
            ),
            means,
        ),
    ]  # fmt: skip
