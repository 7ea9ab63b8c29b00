"""Scatter charts of named points, with optional lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tersor.bench.plots.chart import Chart
from tersor.bench.plots.lines import Points
from tersor.bench.plots.placing import LABEL_PX, Box, Placed, place_names
from tersor.bench.plots.style import PAPER, Look, house_style
from tersor.bench.plots.ticks import can_show


@dataclass(frozen=True, slots=True)
class Point:
    """A named data point; the legend explains its kind."""

    name: str
    x: float
    y: float
    kind: str


@house_style()
def scatter_chart(
    title: str,
    x_label: str,
    y_label: str,
    points: Sequence[Point],
    *,
    lines: Mapping[str, Points] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Return a chart of named points and of lines such as a Pareto front.

    Earlier points have priority for their names. A name without room next to its point is listed below
    the chart with a number, and the point is labelled with that number.
    """

    def fits(x: float, y: float) -> bool:
        return can_show(x, is_log=log_x) and can_show(y, is_log=log_y)

    points = [point for point in points if fits(point.x, point.y)]
    fitting = {name: [p for p in line if fits(*p)] for name, line in (lines or {}).items()}
    drawn = {name: line for name, line in fitting.items() if line}
    if not points:
        return ""
    chart = Chart(title, x_label, y_label, log_x=log_x, log_y=log_y)
    kinds = list(dict.fromkeys(point.kind for point in points))
    looks = {kind: Look(k, is_hollow=k > 0) for k, kind in enumerate(kinds)}
    for kind, look in looks.items():
        (chart.legend[kind],) = chart.axes.plot([], [], linestyle="none", **look.marker)
    for k, (name, line) in enumerate(drawn.items(), start=len(kinds)):
        options = {**Look(k, is_dashed=True).line, "linewidth": 1.6}
        (chart.legend[name],) = chart.axes.plot(*zip(*line, strict=True), clip_on=False, **options)
    for point in points:
        (mark,) = chart.axes.plot(
            [point.x], [point.y], linestyle="none", clip_on=False, **looks[point.kind].marker
        )
        chart.note(mark, f"{point.name or point.kind}: {point.x:.4g}, {point.y:.4g}")
    chart.fix_layout()
    _name_points(chart, points, looks)
    return chart.render()


def _name_points(chart: Chart, points: Sequence[Point], looks: Mapping[str, Look]) -> None:
    """Write names next to their points, or numbers that the key below explains."""
    places = [chart.place(point.x, point.y) for point in points]
    area = Box(2, -6, chart.width, chart.height)
    named = place_names([point.name for point in points], places, area)
    marks = dict[Placed, list[str]]()
    for point, (x, y), placed in zip(points, places, named, strict=True):
        if placed is not None and point.name:
            marks.setdefault(placed, []).append(point.name)
            if placed.is_far:
                ends = np.array([(x, y), placed.box.nearest(x, y)]) / (chart.width, chart.height)
                chart.axes.plot(
                    ends[:, 0], 1 - ends[:, 1], transform=chart.axes.transAxes, clip_on=False,
                    color=looks[point.kind].colour, linewidth=0.7,
                )  # fmt: skip
    for placed in marks:
        box = placed.box
        words = chart.write(box.left, box.bottom - 2.5, placed.words, fontsize=LABEL_PX)
        # an outline in the paper's colour keeps the name legible where a line passes behind it
        chart.note(words, **{"paint-order": "stroke", "stroke": PAPER, "stroke-width": "3"})
    chart.key = [
        f"{one.words} {', '.join(own)}" for one, own in marks.items() if own != [one.words]
    ]
