"""Lines: a value that changes along an axis, for several series."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tersor.bench.core.markup import escaped
from tersor.bench.svg.frame import Axis, Entry, Frame, make_frame
from tersor.bench.svg.scale import can_hold
from tersor.bench.svg.style import Look

Points = Sequence[tuple[float, float]]
_MAX_MARKED = 30
_GREY = 7


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
    """Return a chart with a line per series; series without drawable points are left out.

    Args:
        title: stands above.
        x_label: of the axis below.
        series: points by name.
        y_label: of the axis at the left.
        log_x: whether x is shown by its logarithm.
        log_y: whether y is.
        dashed: names of the series drawn with dashes.
        faint: names of the series drawn thin and grey, and left out of the legend.
        half_widths: for a series, how far each of its points is uncertain up and down.
        level: a height to compare with, and what it is called.
    """
    spreads = half_widths or {}
    kept = {name: _drawable(name, points, spreads, log_x, log_y) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return f"<p>{escaped(title)}: nothing to draw</p>"
    heights = [y + sign * e for points in kept.values() for _, y, e in points for sign in (-1, 1)]
    if level is not None:
        heights.append(level[0])
    looks = {name: Look(k, name in dashed) for k, name in enumerate(_loud(kept, faint))}
    # all lines or none: a line cut short would look like another kind
    has_markers = max(len(points) for points in kept.values()) <= _MAX_MARKED
    entries = [Entry(name, look, has_marker=has_markers) for name, look in looks.items()]
    if level is not None:
        entries.append(Entry(level[1], Look(_GREY, is_dashed=True), has_marker=False))
    widths = [x for points in kept.values() for x, _, _ in points]
    frame = make_frame(title, Axis(x_label, widths, log_x), Axis(y_label, heights, log_y), entries)
    if level is not None and frame.y.holds(level[0]):
        y, look = frame.y.at(level[0]), Look(_GREY, is_dashed=True)
        line = f'd="M{frame.x.start:.1f} {y:.1f}H{frame.x.end:.1f}" stroke="currentColor"'
        frame.add(f'{look.group}<path {line} stroke-width="1.5"{look.dash}/></g>')
    for name, points in kept.items():
        places = [(frame.x.at(x), frame.y.at(y)) for x, y, _ in points]
        if name in looks:
            _draw_spread(frame, looks[name], points)
            _draw_line(frame, looks[name], name, places, with_markers=has_markers)
        else:
            path = _path(places)
            frame.add(
                f'<polyline class="faint" points="{path}" fill="none" stroke="#bbbbbb">'
                f"<title>{escaped(name)}</title></polyline>"
            )
    return frame.render()


def _loud(names: Collection[str], faint: Collection[str]) -> list[str]:
    return [name for name in names if name not in faint]


def _drawable(
    name: str, points: Points, spreads: Mapping[str, Sequence[float]], log_x: bool, log_y: bool
) -> list[tuple[float, float, float]]:
    """Return the points that both axes can hold, each with its half-width."""
    widths = spreads.get(name, [0.0] * len(points))
    return [
        (x, y, e if can_hold(e, is_log=False) else 0.0)
        for (x, y), e in zip(points, widths, strict=True)
        if can_hold(x, is_log=log_x) and can_hold(y, is_log=log_y)
    ]


def _path(places: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _draw_spread(frame: Frame, look: Look, points: Sequence[tuple[float, float, float]]) -> None:
    bars = []
    for x, y, e in points:
        if e:
            place, low, high = frame.x.at(x), frame.y.at(y - e), frame.y.at(y + e)
            caps = f"M{place - 4:.1f} {low:.1f}h8M{place - 4:.1f} {high:.1f}h8"
            bars.append(
                f'<path d="M{place:.1f} {low:.1f}V{high:.1f}{caps}" stroke="currentColor"/>'
            )
    frame.add(f"{look.group}{''.join(bars)}</g>" if bars else "")


def _draw_line(frame: Frame, look: Look, name: str, places: Points, *, with_markers: bool) -> None:
    line = f'points="{_path(places)}" fill="none" stroke="currentColor" stroke-width="2"'
    markers = "".join(look.marker(x, y, 3.6) for x, y in places) if with_markers else ""
    title = f"<title>{escaped(name)}</title>"
    frame.add(f"{look.group}{title}<polyline {line}{look.dash}/>{markers}</g>")
