"""Line charts as SVG text: no plotting package, and nothing to load in a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 34, 44
_COLOURS: Final = ("#4269d0", "#ef8a17", "#3ca951", "#ff725c", "#6cc5b0", "#9c6b4e")
Points = Sequence[tuple[float, float]]


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers within a range."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(k for k in (1, 2, 5, 10) if span / (step * k) <= 6)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.4g}"


def line_chart(title: str, x_label: str, series: Mapping[str, Points]) -> str:
    """Return an SVG element with a line per series; series without points are left out."""
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return f"<p>{escape(title)}: nothing to draw</p>"
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)
    room = (y_high - y_low) * 0.06 or abs(y_high) * 0.05 or 1.0
    y_low, y_high = y_low - room, y_high + room

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        up = (y - y_low) / (y_high - y_low)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}"'
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
    parts = [
        f"<svg {size} {style}>",
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for y in _ticks(y_low, y_high):
        _, height = at(x_low, y)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
            f'stroke="#ddd"/><text x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">'
            f"{_label(y)}</text>"
        )
    for x in _ticks(x_low, x_high):
        place, _ = at(x, y_low)
        parts.append(
            f'<text x="{place:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{_label(x)}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for k, (name, points) in enumerate(drawn.items()):
        colour = _COLOURS[k % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{_WIDTH - _RIGHT}" y="{_TOP + 14 + 16 * k}" text-anchor="end" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return "".join(parts) + "</svg>"
