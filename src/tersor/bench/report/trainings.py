"""Figures and tables from the logs of trainings: every series that they hold, whatever was trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tersor.bench.core.row_checks import is_number
from tersor.bench.plots import line_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.runs import TrainingRun
from tersor.bench.report.section import Section
from tersor.sites.activations.report import is_costly

Line = Mapping[str, Any]
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A number in the lines of one kind of a log.

    Attributes:
        kind: of the lines.
        name: of the number.
        title: of its figure.
        label: of the axis, and of its column in tables.
        is_folded: whether the figure is collapsed until a reader opens it.
        is_varying: whether the figure is left out if the number never changes.
    """

    kind: str
    name: str
    title: str
    label: str
    is_folded: bool = False
    is_varying: bool = False


_KNOWN: Final = (
    Series("eval", "auc", "AUC on the test samples", "AUC"),
    Series("eval", "logloss", "Logloss on the test samples", "logloss"),
    Series("eval", "accuracy", "Accuracy on the test samples", "accuracy"),
    Series("eval", "loss", "Loss on the test samples", "loss"),
    Series("eval", "perplexity", "Perplexity on the test samples", "perplexity", is_folded=True),
    Series("train", "loss", "Training loss", "loss"),
    Series("train", "activation_ratio", "Ratio of saved activations", "ratio", is_varying=True),
    Series("train", "learning_rate", "Learning rate", "learning rate", is_varying=True),
)  # fmt: skip
"""Series that have words of their own, in the order of their figures; any others follow."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A figure of several numbers on one axis.

    Attributes:
        title: of the figure.
        label: of the axis.
        lines: kind of lines and name of the number, by the words for a curve.
        caption: of the figure.
    """

    title: str
    label: str
    lines: Mapping[str, tuple[str, str]]
    caption: str


_SHARED: Final = (
    Shared(
        "Score of the gradients", "score",
        {"last known": ("train", "score"), "probed": ("probe", "score"), "balanced": ("balance", "score")},
        "Similarity to exact gradients, 1 if equal. The last known score is predicted or measured, and of an earlier step; probes "
        "and balances measure.",
    ),
    Shared(
        "Level of saved activations", "step or bound",
        {"in use": ("train", "activation_level"), "last scored": ("train", "score_level"), "probed": ("probe", "score_level")},
        "The level that steps used, and those that the scores were found at.",
    ),
)  # fmt: skip
_SHOWN_ELSEWHERE: Final = ("kind", "step", "score", "score_level", "activation_level")
_PROBED: Final = {
    "step": "step", "score": "score", "weighted": "weighted by bytes", "lowest": "lowest of a weight", "cosine": "cosine",
    "score_level": "level scored", "activation_level": "level after it",
}  # fmt: skip


def standing(log: Iterable[Line]) -> list[Line]:
    """Return the lines of a log without the outdated ones of steps that a resumed run repeated."""
    found: list[Line] = []
    for line in log:
        if line["kind"] == "run":
            found = [one for one in found if one["step"] <= line["step"]]
        found.append(line)
    return found


def curve(log: Iterable[Line], kind: str, name: str) -> Points:
    """Return a number by step, from the lines of one kind that have it."""
    # keyed by step, because a run that was killed at its end is evaluated again when it resumes
    points = {
        line["step"]: line[name]
        for line in standing(log)
        if line["kind"] == kind and is_number(line.get(name))
    }
    return list(points.items())


def series_figures(run: TrainingRun) -> list[Figure]:
    """Return a figure for each series with several points; those that never change say nothing and are left out."""
    figures = [_figure(run, one) for one in (*_KNOWN, *_others(run))]
    place = sum(one.kind == "eval" or one.name == "loss" for one in _KNOWN)
    figures[place:place] = [_shared_figure(run, one) for one in _SHARED]
    return [figure for figure in figures if figure is not None]


def _others(run: TrainingRun) -> Iterator[Series]:
    """Yield the series without words of their own, such as speeds and norms of gradients."""
    known = {(one.kind, one.name) for one in _KNOWN}
    lines = [line for log in run.logs.values() for line in standing(log)]
    names = dict.fromkeys(
        (line["kind"], name)
        for line in lines
        if line["kind"] in ("eval", "train")
        for name in line
        if name not in _SHOWN_ELSEWHERE
    )
    for kind, name in names:
        if (kind, name) not in known:
            words = _words(name)
            place = " on the test samples" if kind == "eval" else ""
            yield Series(
                kind, name, f"{words[:1].upper()}{words[1:]}{place}", words, is_folded=True, is_varying=True
            )  # fmt: skip


def _words(name: str) -> str:
    if name == "step_s":
        return "seconds per step"
    return name.replace("_per_s", " per second").replace("_", " ")


def _figure(run: TrainingRun, series: Series) -> Figure | None:
    curves = {name: curve(log, series.kind, series.name) for name, log in run.logs.items()}
    if not any(len(points) > 1 for points in curves.values()):
        return None
    if series.is_varying and len({y for points in curves.values() for _, y in points}) == 1:
        return None
    svg = line_chart(series.title, "step", curves, y_label=series.label, dashed=list(curves)[1:])
    return Figure(
        slug(run.name, series.title), svg, f"{series.title}, by step.", is_folded=series.is_folded
    )


def _shared_figure(run: TrainingRun, shared: Shared) -> Figure | None:
    """Return a figure that several numbers share."""
    curves = {
        f"{name}, {words}" if len(run.logs) > 1 else words: points
        for name, log in run.logs.items()
        for words, (kind, number) in shared.lines.items()
        if (points := curve(log, kind, number))
    }
    if not any(len(points) > 1 for points in curves.values()):
        return None
    if len({y for points in curves.values() for _, y in points}) == 1:
        return None
    svg = line_chart(shared.title, "step", curves, y_label=shared.label, dashed=list(curves)[1:])
    return Figure(slug(run.name, shared.title), svg, shared.caption)


def add_tables(section: Section, run: TrainingRun) -> None:
    """Add tables of evaluations, of probes, and of what the last step saved, where the logs have them."""
    for name, log in run.logs.items():
        lines, of_log = standing(log), f", {name}" if len(run.logs) > 1 else ""
        _add_lines(section, f"Evaluations{of_log}", _of_kind(lines, "eval"), {"step": "step"})
        _add_lines(section, f"Probes of the gradients{of_log}", _of_kind(lines, "probe"), _PROBED)
        saved = [line["activations"] for line in lines if "activations" in line]
        if saved:
            _add_saved(section, f"Saved for backward in the last step{of_log}", saved[-1])


def _of_kind(lines: Sequence[Line], kind: str) -> list[Line]:
    """Return the last line of each step among those of one kind."""
    return list({line["step"]: line for line in lines if line["kind"] == kind}.values())


def _add_lines(
    section: Section, title: str, lines: Sequence[Line], heads: Mapping[str, str]
) -> None:
    """Add a table with a row per line and a column per number; ``heads`` come first, the others with their own names."""
    own = {one.name: one.label for one in _KNOWN if one.kind == "eval"}
    names = [name for name in heads if any(name in line for line in lines)]
    names += dict.fromkeys(
        name for line in lines for name, x in line.items() if name not in heads and is_number(x)
    )
    if lines:
        head = [heads.get(name, own.get(name, _words(name))) for name in names]
        section.table(title, head, [[_cell(line.get(name)) for name in names] for line in lines])


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return _decimals(value) if isinstance(value, float) else ""


def _decimals(value: float) -> str:
    """Return a number with four decimals, or with four digits if it is large, as losses of diverged trainings are."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


def _add_saved(section: Section, title: str, saved: Mapping[str, Any]) -> None:
    rows = [
        [form, f"{one['num_tensors']:,}", *_volume(one["original_nbytes"], one["held_nbytes"])]
        for form, one in saved["forms"].items()
        if is_costly(form)
    ]
    total = ["all", "", *_volume(saved["original_nbytes"], saved["held_nbytes"])]
    section.table(title, ("form", "tensors", "MiB", "MiB held", "ratio"), [*rows, total])


def _volume(original_nbytes: int, held_nbytes: int) -> list[str]:
    ratio = f"{original_nbytes / held_nbytes:.2f}" if held_nbytes else ""
    return [f"{original_nbytes / 2**20:.3f}", f"{held_nbytes / 2**20:.3f}", ratio]


def end_words(run: TrainingRun) -> str:
    """Return what a single training ended with, to follow its number of steps in a sentence; empty if nothing is known."""
    lines = [line for log in run.logs.values() for line in standing(log)]
    evals = [line for line in lines if line["kind"] == "eval"]
    found = ""
    for name, label in (("auc", "AUC"), ("accuracy", "accuracy"), ("loss", "loss")):
        if evals and is_number(evals[-1].get(name)):
            found += f", {label} {_decimals(evals[-1][name])}"
    saved = [line["activations"] for line in lines if "activations" in line]
    if saved and saved[-1]["held_nbytes"]:
        ratio = saved[-1]["original_nbytes"] / saved[-1]["held_nbytes"]
        found += f", saved activations {ratio:.1f} times smaller"
    return found
