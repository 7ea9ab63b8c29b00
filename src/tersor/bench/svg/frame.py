"""The frame of a chart: title, legend, axes and grid, and the file around them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tersor.bench.core.markup import escaped
from tersor.bench.svg.scale import Scale, number_label, widest
from tersor.bench.svg.style import FONT_PX, GRID, MUTED, Look, text, text_width

WIDTH: Final = 480
"""A column of a page or of a paper; on a phone of 390 pixels the text is still 9 pixels high."""
_PLOT_HEIGHT: Final = 250
_MARGIN: Final = 10
_TITLE_PX: Final = 14


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis is called, the values it must show, and whether by their logarithm."""

    label: str
    values: Sequence[float]
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the legend."""

    name: str
    look: Look
    is_line: bool = True
    has_marker: bool = True


@dataclass(slots=True)
class Frame:
    """A chart that is being drawn: where numbers lie, and the parts so far."""

    title: str
    x: Scale
    y: Scale
    height: float
    parts: list[str] = field(default_factory=list)

    def add(self, *parts: str) -> None:
        """Draw something over what is there."""
        self.parts.extend(parts)

    def render(self) -> str:
        """Return the chart as a whole SVG file."""
        return svg_file(self.title, self.height, self.parts)


def svg_file(title: str, height: float, parts: Iterable[str]) -> str:
    """Return an SVG element that is a file of its own, with a title for those who cannot see it."""
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    kind = f'role="img" aria-label="{escaped(title)}" xmlns="http://www.w3.org/2000/svg"'
    font = f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT_PX}"'
    return f"<svg {size} {kind} {font}>{''.join(parts)}</svg>"


def title_lines(title: str) -> list[str]:
    """Return a title broken into lines that fit."""
    return textwrap.wrap(title, int((WIDTH - 2 * _MARGIN) / (_TITLE_PX * 0.66))) or [""]


def title_parts(lines: Sequence[str]) -> list[str]:
    """Return the elements of a title's lines."""
    size = {"font_size": str(_TITLE_PX), "font_weight": "bold"}
    return [text(_MARGIN, 18 + 17 * k, line, **size) for k, line in enumerate(lines)]


def legend_parts(entries: Sequence[Entry], top: float) -> tuple[list[str], float]:
    """Return the legend's elements from ``top`` on, and where it ends; entries wrap."""
    parts: list[str] = []
    x, y = float(_MARGIN), top + 6
    for entry in entries:
        width = 26 + text_width(entry.name) + 12
        if x > _MARGIN and x + width > WIDTH:
            x, y = float(_MARGIN), y + 17
        sample = ""
        if entry.is_line:
            dash = entry.look.dash
            sample = f'<path d="M{x:.1f} {y:.1f}h20" stroke="currentColor" stroke-width="2"{dash}/>'
        if entry.has_marker:
            sample += entry.look.marker(x + 10, y, 3.6)
        parts += [f"{entry.look.group}{sample}</g>", text(x + 26, y + 4.5, entry.name)]
        x += width
    return parts, (y + 12 if entries else top)


def make_frame(title: str, x: Axis, y: Axis, entries: Sequence[Entry]) -> Frame:
    """Draw title, legend, grid and axes; the axes' values must be drawable, and at least one."""
    lines = title_lines(title)
    legend, top = legend_parts(entries, 12 + 17 * len(lines))
    top += 8
    bottom = top + _PLOT_HEIGHT
    up = Scale.spanning(y.values, bottom, top, is_log=y.is_log)
    labels = [number_label(tick) for tick in up.ticks()]
    left = _MARGIN + (18 if y.label else 0) + text_width("0" * widest(labels)) + 6
    across = Scale.spanning(x.values, left, WIDTH - _MARGIN, is_log=x.is_log)
    frame = Frame(title, across, up, bottom + 42, [*title_parts(lines), *legend])
    for tick, label in zip(up.ticks(), labels, strict=True):
        height = up.at(tick)
        frame.add(
            _grid(f"M{left:.1f} {height:.1f}H{WIDTH - _MARGIN}"),
            text(left - 6, height + 4.5, label, anchor="end", colour=MUTED),
        )
    _x_axis(frame, x, bottom, top)
    if y.label:
        turn = f"rotate(-90 {_MARGIN + 6} {(top + bottom) / 2:.1f})"
        frame.add(text(_MARGIN + 6, (top + bottom) / 2, y.label, anchor="middle", transform=turn))
    return frame


def _x_axis(frame: Frame, axis: Axis, bottom: float, top: float) -> None:
    for tick in frame.x.ticks():
        place = frame.x.at(tick)
        # the outermost numbers would stick out of the figure
        inner = min(max(place, frame.x.start + 4), WIDTH - _MARGIN - 8)
        frame.add(
            _grid(f"M{place:.1f} {top:.1f}V{bottom:.1f}"),
            text(inner, bottom + 17, number_label(tick), anchor="middle", colour=MUTED),
        )
    middle = (frame.x.start + frame.x.end) / 2
    frame.add(text(middle, bottom + 35, axis.label, anchor="middle"))


def _grid(path: str) -> str:
    return f'<path class="grid" d="{path}" stroke="{GRID}"/>'
