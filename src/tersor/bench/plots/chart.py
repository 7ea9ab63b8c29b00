"""A chart with two axes, a title and a legend, and its conversion to an SVG file."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tersor.bench.plots.style import WIDTH, text_width
from tersor.bench.plots.svg_text import printable, tidied
from tersor.bench.plots.ticks import set_ticks

if TYPE_CHECKING:
    from matplotlib.artist import Artist

_MARGIN: Final = 10
_TITLE_PX: Final = 14
_LINE_PX: Final = 17
_HANDLE_PX: Final = 40
"""Width of the sample before a name in the legend plus the space after the name."""
_KEY_PX: Final = 12
_KEY_LINE_PX: Final = 15
_NO_METADATA: Final[dict[str, Any]] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


class Chart:
    """A chart that is being drawn.

    Positions are in pixels from the upper left corner of the plot area, whose size is known after
    ``fix_layout``.

    Attributes:
        axes: matplotlib's axes; their limits follow from what is drawn.
        legend: the artist that represents each name in the legend.
        key: lines of text below the axis.
        width: width of the plot area in pixels.
        height: height of the plot area in pixels.
    """

    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str = "",
        *,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        from matplotlib.figure import Figure

        self._title = _line(title)
        self._figure = Figure(frameon=False)
        self.axes = self._figure.add_axes((0, 0, 1, 1), frame_on=False)
        scales = {True: "log", False: "linear"}
        self.axes.set(xscale=scales[log_x], yscale=scales[log_y])
        self.axes.set(xlabel=_line(x_label), ylabel=_line(y_label))
        self.axes.minorticks_off()
        self.legend: dict[str, Artist] = {}
        self.key: list[str] = []
        self._notes: dict[str, dict[str, str]] = {}

    def fix_layout(
        self, *, names: Sequence[str] = (), height: float = 250, right: float = _MARGIN
    ) -> None:
        """Fix the plot area, after everything that affects its limits has been drawn.

        Args:
            names: labels of the positions 0, 1, 2, ... on the left axis, if it has no numbers.
            height: height of the plot area.
            right: margin to the right of it.
        """
        set_ticks(self.axes.xaxis)
        labels = [_line(name) for name in names] or set_ticks(self.axes.yaxis)
        if names:
            self.axes.set_yticks(range(len(names)), labels)
        label_width = 18 if self.axes.get_ylabel() else 0
        self._left = _MARGIN + label_width + _widest(labels) + 6
        self.width, self.height = WIDTH - right - self._left, height
        self.axes.yaxis.set_label_coords((20 - self._left) / self.width, 0.5)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a data point."""
        across, up = (self.axes.transScale + self.axes.transLimits).transform((x, y))
        return float(across) * self.width, (1 - float(up)) * self.height

    def write(self, x: float, y: float, words: str, **options: Any) -> Artist:
        """Write words at a position."""
        place = (x / self.width, 1 - y / self.height)
        return self.axes.text(*place, _line(words), transform=self.axes.transAxes, **options)

    def note(self, artist: Artist, title: str = "", **attributes: str) -> None:
        """Attach a tooltip to an artist, and SVG attributes that matplotlib cannot write."""
        name = f"note{len(self._notes)}"
        artist.set_gid(name)
        self._notes[name] = {"title": _line(title), **attributes}

    def render(self) -> str:
        """Return the chart as a complete SVG file."""
        wide = WIDTH - 2 * _MARGIN
        left = _MARGIN - self._left
        titles = textwrap.wrap(self._title, int(wide / (_TITLE_PX * 0.66)))
        columns = _num_columns(list(self.legend))
        legend_px = 10 + _LINE_PX * math.ceil(len(self.legend) / columns)
        above = legend_px + 10 + _LINE_PX * len(titles)
        for k, line in enumerate(titles):
            size = {"fontsize": _TITLE_PX, "fontweight": "bold"}
            self.write(left, 18 + _LINE_PX * k - above, line, **size)
        if self.legend:
            self.axes.legend(
                self.legend.values(), map(_line, self.legend), ncols=columns, loc="upper left",
                bbox_to_anchor=(left / self.width, 1 + legend_px / self.height),
            )  # fmt: skip
        below = 42
        for words in self.key:
            width = int(wide / text_width("0", _KEY_PX))
            for line in textwrap.wrap(words, width, break_on_hyphens=False):
                self.write(left, self.height + below + 10, line, fontsize=_KEY_PX)
                below += _KEY_LINE_PX
        return self._svg(above, below)

    def _svg(self, above: float, below: float) -> str:
        height = above + self.height + below
        self._figure.set_size_inches(WIDTH / 72, height / 72)
        place = (self._left / WIDTH, below / height, self.width / WIDTH, self.height / height)
        self.axes.set_position(place)
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            # a viewer may have fonts that matplotlib lacks
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            self._figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
        return tidied(buffer.getvalue(), self._title, self._notes)


def _line(words: str) -> str:
    return printable(words.replace("\n", " "))


def _widest(labels: Sequence[str]) -> float:
    return max((text_width(label) for label in labels), default=0.0)


def _num_columns(names: Sequence[str]) -> int:
    """Return the number of legend columns that fit side by side."""
    for columns in range(len(names), 1, -1):
        # matplotlib fills one column after the other
        parts = np.array_split(np.array([text_width(name) for name in names]), columns)
        if sum(float(part.max()) + _HANDLE_PX for part in parts) <= WIDTH - 2 * _MARGIN:
            return columns
    return 1
