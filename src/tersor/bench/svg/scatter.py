"""Points with names, and lines among them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tersor.bench.core.markup import escaped
from tersor.bench.svg.frame import WIDTH, Axis, Entry, Frame, make_frame
from tersor.bench.svg.lines import Points
from tersor.bench.svg.placing import Box, Placed, place_names
from tersor.bench.svg.scale import can_hold
from tersor.bench.svg.style import Look, text, text_width

_KEY_PX: Final = 12


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

    A name that finds no room beside its point stands below, under a number that stands at the point.
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
    marks = dict[Placed, list[str]]()
    for point, (x, y), placed in zip(points, places, named, strict=True):
        look = looks[point.kind]
        told = escaped(f"{point.name or point.kind}: {point.x:.4g}, {point.y:.4g}")
        parts = [look.group, f"<title>{told}</title>", look.marker(x, y)]
        if placed is not None and point.name:
            marks.setdefault(placed, []).append(point.name)
            parts += [_pointer(x, y, placed)] if placed.is_far else []
        frame.add(*parts, "</g>")
    for placed in marks:
        box = placed.box
        # an outline in the colour of the paper, where a line passes behind the name
        halo = {"paint_order": "stroke", "stroke": "#ffffff", "stroke_width": "3"}
        frame.add(text(box.left, box.bottom - 2.5, placed.words, "start", font_size="12", **halo))
    key = [f"{one.words} {', '.join(own)}" for one, own in marks.items() if own != [one.words]]
    _draw_key(frame, key)


def _pointer(x: float, y: float, placed: Placed) -> str:
    """Return a line from a point to its name."""
    end_x = min(max(x, placed.box.left), placed.box.right)
    end_y = min(max(y, placed.box.top), placed.box.bottom)
    line = f"M{x:.1f} {y:.1f}L{end_x:.1f} {end_y:.1f}"
    return f'<path d="{line}" stroke="currentColor" stroke-width="0.7"/>'


def _draw_key(frame: Frame, key: Sequence[str]) -> None:
    """Say below the axis whose the numbers are."""
    width = int((WIDTH - 20) / text_width("0", _KEY_PX))
    for words in key:
        for line in textwrap.wrap(words, width, break_on_hyphens=False):
            frame.add(text(10, frame.height + 10, line, "start", font_size=str(_KEY_PX)))
            frame.height += 15
