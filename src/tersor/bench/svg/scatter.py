"""Points with names, and lines among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tersor.bench.markup import escaped
from tersor.bench.svg.frame import Axis, Entry, Frame, make_frame
from tersor.bench.svg.lines import Points
from tersor.bench.svg.placing import Box, place_names
from tersor.bench.svg.scale import can_hold
from tersor.bench.svg.style import Look, text


@dataclass(frozen=True, slots=True)
class Point:
    """Something measured twice: where it lies, its name, and its kind, which the legend explains."""

    name: str
    x: float
    y: float
    kind: str


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
    """Return a chart of named points, and of lines such as a front; the first points are named first.

    A name that finds no room is left out; a browser shows it when the pointer rests on the point.
    """

    def fits(x: float, y: float) -> bool:
        return can_hold(x, is_log=log_x) and can_hold(y, is_log=log_y)

    points = [point for point in points if fits(point.x, point.y)]
    drawn = {name: [p for p in line if fits(*p)] for name, line in (lines or {}).items()}
    drawn = {name: line for name, line in drawn.items() if line}
    if not points:
        return f"<p>{escaped(title)}: nothing to draw</p>"
    kinds = list(dict.fromkeys(point.kind for point in points))
    looks = {kind: Look(k, is_hollow=k > 0) for k, kind in enumerate(kinds)}
    entries = [Entry(kind, look, is_line=False) for kind, look in looks.items()]
    tracks = {name: Look(k, is_dashed=True) for k, name in enumerate(drawn, start=len(kinds))}
    entries += [Entry(name, look, has_marker=False) for name, look in tracks.items()]
    every = [(p.x, p.y) for p in points] + [p for line in drawn.values() for p in line]
    xs, ys = [x for x, _ in every], [y for _, y in every]
    frame = make_frame(title, Axis(x_label, xs, log_x), Axis(y_label, ys, log_y), entries)
    for name, line in drawn.items():
        path = " ".join(f"{frame.x.at(x):.1f},{frame.y.at(y):.1f}" for x, y in line)
        stroke = 'fill="none" stroke="currentColor" stroke-width="1.6"'
        look = tracks[name]
        frame.add(f'{look.group}<polyline points="{path}" {stroke}{look.dash}/></g>')
    _draw_points(frame, points, looks)
    return frame.render()


def _draw_points(frame: Frame, points: Sequence[Point], looks: Mapping[str, Look]) -> None:
    places = [(frame.x.at(point.x), frame.y.at(point.y)) for point in points]
    area = Box(frame.x.start + 2, frame.y.end - 6, frame.x.end, frame.y.start)
    named = place_names([point.name for point in points], places, area)
    for point, (x, y), found in zip(points, places, named, strict=True):
        placed = found if point.name else None
        look = looks[point.kind]
        title = (
            f"<title>{escaped(f'{point.name or point.kind}: {point.x:.4g}, {point.y:.4g}')}</title>"
        )
        parts = [look.group, title, look.marker(x, y)]
        if placed is not None and placed.is_far:
            end_x = min(max(x, placed.box.left), placed.box.right)
            end_y = min(max(y, placed.box.top), placed.box.bottom)
            parts.append(
                f'<path d="M{x:.1f} {y:.1f}L{end_x:.1f} {end_y:.1f}" stroke="currentColor" '
                'stroke-width="0.7"/>'
            )
        frame.add(*parts, "</g>")
        if placed is not None:
            box = placed.box
            # an outline in the colour of the paper, where a line passes behind the name
            halo = {"paint_order": "stroke", "stroke": "#ffffff", "stroke_width": "3"}
            frame.add(text(box.left, box.bottom - 2.5, point.name, "start", font_size="12", **halo))
