"""Line charts of one or more series."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tersor.bench.plots.chart import Chart
from tersor.bench.plots.style import FAINT, GREY, Look, house_style
from tersor.bench.plots.ticks import can_show

Points = Sequence[tuple[float, float]]
_MAX_MARKED: Final = 30


@house_style()
def line_chart(
    title: str,
    x_label: str,
    series: Mapping[str, Points],
    *,
    y_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
    dashed: Collection[str] = (),
    faint: Collection[str] = (),
    half_widths: Mapping[str, Sequence[float]] | None = None,
    level: tuple[float, str] | None = None,
) -> str:
    """Return a chart with one line per series; series without drawable points are omitted.

    Args:
        title: title above the chart.
        x_label: label of the x axis.
        series: points by name.
        y_label: label of the y axis.
        log_x: whether the x axis is logarithmic.
        log_y: whether the y axis is logarithmic.
        dashed: names of the series drawn with dashes.
        faint: names of the series drawn thin and grey, and omitted from the legend.
        half_widths: half the height of each point's error bar, by series.
        level: the y value of a horizontal reference line, and its name.
    """
    spreads = half_widths or {}
    drawable = {
        name: _drawable(name, points, spreads, log_x, log_y) for name, points in series.items()
    }
    drawable = {name: points for name, points in drawable.items() if points}
    if not drawable:
        return ""
    chart = Chart(title, x_label, y_label, log_x=log_x, log_y=log_y)
    if level is not None:
        grey = Look(GREY, is_dashed=True).line
        level_line = chart.axes.axhline(level[0], **{**grey, "linewidth": 1.5})
    # markers on all lines or on none, because a short line with markers would look like another kind
    has_markers = max(len(points) for points in drawable.values()) <= _MAX_MARKED
    for name, points in drawable.items():
        xs, ys, _ = zip(*points, strict=True)
        if name in faint:
            (line,) = chart.axes.plot(xs, ys, color=FAINT, linewidth=1, clip_on=False)
        else:
            look = Look(len(chart.legend), name in dashed)
            options = {**look.line, **(look.marker if has_markers else {})}
            (line,) = chart.axes.plot(xs, ys, clip_on=False, **options)
            chart.legend[name] = line
            _draw_spread(chart, look, points)
        chart.note(line, name)
    if level is not None:
        chart.legend[level[1]] = level_line
    chart.fix_layout()
    return chart.render()


def _drawable(
    name: str, points: Points, spreads: Mapping[str, Sequence[float]], log_x: bool, log_y: bool
) -> list[tuple[float, float, float]]:
    """Return the points that both axes can show, each with its half width."""
    widths = spreads.get(name, [0.0] * len(points))
    return [
        (x, y, e if can_show(e, is_log=False) else 0.0)
        for (x, y), e in zip(points, widths, strict=True)
        if can_show(x, is_log=log_x) and can_show(y, is_log=log_y)
    ]


def _draw_spread(chart: Chart, look: Look, points: Sequence[tuple[float, float, float]]) -> None:
    uncertain = [point for point in points if point[2]]
    if uncertain:
        xs, ys, spread = zip(*uncertain, strict=True)
        chart.axes.errorbar(
            xs, ys, spread, fmt="none", color=look.colour, elinewidth=1, capsize=4, clip_on=False
        )
