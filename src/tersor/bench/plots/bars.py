"""Horizontal bar charts, with one value per name and room for many long names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tersor.bench.plots.chart import Chart
from tersor.bench.plots.style import INK, MUTED, PAPER, Look, house_style, text_width
from tersor.bench.plots.ticks import can_show, number_label

_ROW_PX: Final = 17
_MAX_NAME: Final = 22


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, its nonnegative value, and its kind, which the legend explains."""

    name: str
    value: float
    kind: str = ""


@house_style()
def bar_chart(title: str, x_label: str, bars: Sequence[Bar]) -> str:
    """Return a chart with one bar per name, in order; negative and non-finite values are omitted."""
    bars = [bar for bar in bars if can_show(bar.value, is_log=False) and bar.value >= 0]
    if not bars:
        return ""
    most = max(bar.value for bar in bars) or 1.0
    values = [number_label(float(f"{bar.value:.3g}")) for bar in bars]
    looks = {kind: Look(k) for k, kind in enumerate(dict.fromkeys(bar.kind for bar in bars))}
    chart = Chart(title, x_label)
    chart.axes.set(xlim=(0, most), ylim=(len(bars) - 0.5, -0.5))
    chart.axes.tick_params("y", labelcolor=INK, grid_alpha=0)
    right = 14 + max(map(text_width, values))
    chart.fix_layout(
        names=[_cut(bar.name) for bar in bars], height=_ROW_PX * len(bars), right=right
    )
    for k, (bar, value) in enumerate(zip(bars, values, strict=True)):
        look = looks[bar.kind]
        drawn = chart.axes.barh([k], [bar.value], height=0.76, color=look.colour, clip_on=False)
        tooltip = f"{bar.name}: {bar.value:.4g}" + (f", {bar.kind}" if bar.kind else "")
        chart.note(drawn[0], tooltip)
        chart.axes.bar_label(drawn, [value], padding=5, color=MUTED)
        if len(looks) > 1 and chart.place(bar.value, k)[0] > 14:
            marker = {**look.marker, "color": PAPER, "markerfacecolor": PAPER, "markersize": 5}
            chart.axes.plot([7 * most / chart.width], [k], **marker)
        if bar.kind:
            (sample,) = chart.axes.plot([], [], linestyle="none", **look.marker)
            chart.legend.setdefault(bar.kind, sample)
    return chart.render()


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
