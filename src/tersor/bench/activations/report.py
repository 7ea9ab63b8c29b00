"""The report sections about saved activations."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tersor.bench.activations.contenders import LOSSLESS
from tersor.bench.activations.tables import STEP_COLUMNS, StepGroup, step_cells, step_groups
from tersor.bench.activations.trainings import (
    TRAINING_COLUMNS,
    activation_trainings,
    all_ratio,
    mean_ratio,
    mean_score,
    named,
    training_cells,
)
from tersor.bench.core.rows import ActivationRow
from tersor.bench.core.training_place import EXACT, TrainingPlace
from tersor.bench.plots import Bar, Point, bar_chart, line_chart, scatter_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links
from tersor.bench.report.runs import RowsRun, Run
from tersor.bench.report.section import Section


def steps_section(run: Run, _links: Links) -> Section | None:
    """Return the section with peaks, and times against ratios, of all contenders on all models."""
    found = run.rows if isinstance(run, RowsRun) else []
    rows = [row for row in found if isinstance(row, ActivationRow)]
    if not rows:
        return None
    section = Section(_sentence(rows)).heading("What waits for backward")
    for group in step_groups(rows):
        section.show(*_step_figures(run.name, group))
    return section.table("Steps", STEP_COLUMNS, step_cells(rows))


def _sentence(rows: Sequence[ActivationRow]) -> str:
    gains = [
        (gain, row.codec, group.name)
        for group in step_groups(rows)
        for row in group.rows.values()
        if not row.peer and row.codec != LOSSLESS and (gain := group.peak_gain(row)) is not None
    ]
    start = f"{len(rows):,} row{'s' * (len(rows) != 1)} of training steps"
    if not gains:
        return f"{start}."
    gain, name, group_name = max(gains)
    return f"{start}; of ours, {name} lowers the peak most: {gain:.2f} times on {group_name}."


def _step_figures(run: str, group: StepGroup) -> list[Figure]:
    peaks = [
        Bar(name, row.memory.peak_nbytes / 2**20)
        for name, row in group.rows.items()
        if row.memory is not None and row.memory.peak_nbytes
    ]
    points = [
        Point(name, row.ratio, overhead, "another method" if row.peer else "tersor")
        for name, row in group.rows.items()
        if row.encoded_nbytes and (overhead := group.overhead_percent(row)) is not None
    ]
    return [
        Figure(
            slug(run, "peak", group.name),
            bar_chart(f"Peak of a step: {group.name}", "MiB", peaks),
            "Beyond parameters and gradients.",
        ),
        Figure(
            slug(run, "overhead", group.name),
            scatter_chart(
                f"Time against bytes: {group.name}", "ratio of what waits", "step longer by %", points,
                log_x=True,
            ),
            "Compiled contenders are compared with the compiled model.",
        ),
    ]  # fmt: skip


def trainings_section(run: Run, _links: Links) -> Section | None:
    """Return the section with accuracy or loss against score and ratio, and all training runs."""
    rows = run.rows if isinstance(run, RowsRun) else []
    places = list(activation_trainings(rows))
    if not places:
        return None
    section = Section(" ".join(_training_sentence(place) for place in places))
    section.heading("Trainings with compressed activations")
    for place in places:
        section.show(*_training_figures(run.name, place))
    return section.table("Trainings", TRAINING_COLUMNS, training_cells(rows))


def _training_sentence(place: TrainingPlace) -> str:
    said = []
    for setting in place.rows:
        change = place.accuracy_change(setting)
        unit = "points"
        if change is None:
            change, unit = place.change(setting), "%"
        if setting != EXACT and change is not None:
            said.append(f"{setting} {change.mean:+.2f} {unit}")
    return f"{named(place)}: {', '.join(said) if said else 'exact only'}."


def _quality(place: TrainingPlace, setting: str) -> tuple[float, str]:
    """Return the mean accuracy in percent, or else the mean loss, and a label for it."""
    accuracies = place.accuracies(setting)
    if accuracies:
        return 100 * fmean(accuracies), "accuracy in %"
    return fmean(place.losses(setting)), "loss"


def _training_figures(run: str, place: TrainingPlace) -> list[Figure]:
    """Return figures of accuracy or loss against ratio and score, and the loss curves."""
    figures, words = [], named(place)
    learned = {setting: _quality(place, setting) for setting in place.rows}
    label = next(iter(learned.values()))[1]
    # the exact run compresses nothing, and its gradients are the reference
    against: dict[str, dict[str, float | None]] = {
        "ratio": {one: mean_ratio(place, one, all_ratio) or 1.0 for one in place.rows},
        "score": {one: 1.0 if one == EXACT else mean_score(place, one) for one in place.rows},
    }
    for axis, values in against.items():
        points = [
            Point(one, x, learned[one][0], one.partition("-")[0])
            for one, x in values.items()
            if x is not None
        ]
        chart = scatter_chart(
            f"{label[0].upper()}{label[1:]} against {axis}: {words}", axis, label, points,
            log_x=axis == "ratio",
        )  # fmt: skip
        figures.append(Figure(slug(run, f"learned-{axis}", words), chart, "Mean over seeds."))
    curves = {setting: place.curve(setting) for setting in place.rows}
    loss = line_chart(f"Loss: {words}", "step", curves, y_label="loss", dashed=[EXACT])
    return [*figures, Figure(slug(run, "activations-loss", words), loss, "Mean over seeds.", True)]
