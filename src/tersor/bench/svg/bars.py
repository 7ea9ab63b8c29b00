"""Horizontal bars: one value per name, with room for long names and many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tersor.bench.core.markup import escaped
from tersor.bench.svg.frame import WIDTH, Entry, legend_parts, svg_file, title_lines, title_parts
from tersor.bench.svg.scale import Scale, can_hold, number_label, widest
from tersor.bench.svg.style import GRID, MUTED, Look, text, text_width

_ROW = 17.0
_MAX_NAME = 22


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, its value from 0 on, and its kind, which the legend explains."""

    name: str
    value: float
    kind: str = ""


def bar_chart(title: str, x_label: str, bars: Sequence[Bar]) -> str:
    """Return a chart with a bar per name, in their order; what is negative or not finite is left out."""
    bars = [bar for bar in bars if can_hold(bar.value, is_log=False) and bar.value >= 0]
    if not bars:
        return f"<p>{escaped(title)}: nothing to draw</p>"
    names = [_cut(bar.name) for bar in bars]
    kinds = list(dict.fromkeys(bar.kind for bar in bars))
    looks = {kind: Look(k) for k, kind in enumerate(kinds)}
    lines = title_lines(title)
    entries = [Entry(kind, look, is_line=False) for kind, look in looks.items() if kind]
    legend, top = legend_parts(entries, 12 + 17 * len(lines))
    top += 6
    values = [number_label(float(f"{bar.value:.3g}")) for bar in bars]
    left = 16 + text_width("0" * widest(names))
    most = max(bar.value for bar in bars) or 1.0
    scale = Scale(0.0, most, left, WIDTH - 14 - text_width("0" * widest(values)))
    bottom = top + _ROW * len(bars)
    parts = [*title_parts(lines), *legend]
    for tick in scale.ticks():
        x = scale.at(tick)
        line = f'd="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{GRID}"'
        label = text(x, bottom + 15, number_label(tick), anchor="middle", colour=MUTED)
        parts += [f'<path class="grid" {line}/>', label]
    for k, (bar, name, value) in enumerate(zip(bars, names, values, strict=True)):
        y = top + _ROW * k
        end = scale.at(bar.value)
        look = looks[bar.kind]
        size = f'x="{left:.1f}" y="{y + 2:.1f}" width="{end - left:.1f}" height="{_ROW - 4:.1f}"'
        told = escaped(f"{bar.name}: {bar.value:.4g}" + (f", {bar.kind}" if bar.kind else ""))
        marker = f'<g class="onbar" color="#ffffff">{look.marker(left + 7, y + _ROW / 2, 2.6)}</g>'
        parts += [
            f'{look.group}<title>{told}</title><rect {size} fill="currentColor"/></g>',
            marker if len(kinds) > 1 and end - left > 14 else "",
            text(left - 6, y + 13, name, anchor="end"),
            text(end + 5, y + 13, value, colour=MUTED),
        ]
    parts.append(text((left + WIDTH) / 2, bottom + 33, x_label, anchor="middle"))
    return svg_file(title, bottom + 42, parts)


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
