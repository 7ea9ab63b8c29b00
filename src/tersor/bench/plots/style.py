"""The style of charts: sizes, fonts and colours for matplotlib, and the looks of series."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

COLOURS: Final = (
    "#0060b0", "#c2410c", "#14804a", "#8b3fb3", "#8a6100", "#00787f", "#b3206c", "#5a5a5a",
)  # fmt: skip
"""Each has a contrast of at least 4.5 : 1 on white."""
INK, MUTED, GRID, FAINT, PAPER = "#222222", "#555555", "#dddddd", "#bbbbbb", "#ffffff"
SCREEN_COLOURS: Final = {
    INK: "#e6e9ee", MUTED: "#a3adb8", GRID: "#363c45", FAINT: "#5b636e", PAPER: "#14171c",
    "#0060b0": "#6cb2ff", "#c2410c": "#ff9460", "#14804a": "#5fd08e", "#8b3fb3": "#cf9bf0",
    "#8a6100": "#e3bb4a", "#00787f": "#4fd2dc", "#b3206c": "#ff86bd", "#5a5a5a": "#b8bec6",
}  # fmt: skip
"""The replacement of each colour on a dark screen."""
GREY: Final = COLOURS.index("#5a5a5a")

WIDTH: Final = 480
"""Width of a page's or paper's column in pixels; on a 390-pixel phone, text is still 9 pixels high."""
FONT_PX: Final = 13
_TEXT_WIDTH: Final = 0.6
"""Mean character width relative to the font size, for the wider of the common sans-serif fonts."""

_MARKERS: Final = ("o", "s", "^", "D", "x", "v", "+")
_DASHES: Final = ("-", (0, (3.5, 1.5)), (0, (1, 1.5)))
_DASHED: Final = (0, (2.5, 2))
# at 72 dots per inch, a point is a pixel
_RC_PARAMS: Final[dict[str, Any]] = {
    "axes.axisbelow": True, "axes.grid": True,
    "axes.labelcolor": INK, "axes.labelsize": FONT_PX, "figure.dpi": 72,
    "font.family": "DejaVu Sans", "font.size": FONT_PX, "grid.color": GRID, "grid.linewidth": 1,
    "legend.borderaxespad": 0, "legend.borderpad": 0, "legend.columnspacing": 1,
    "legend.fontsize": FONT_PX, "legend.frameon": False, "legend.handlelength": 1.6,
    "legend.handletextpad": 0.5, "legend.labelspacing": 0.3, "lines.linewidth": 2, "lines.markeredgewidth": 1.6,
    "lines.markersize": 7, "path.simplify": False, "svg.fonttype": "none",
    "svg.hashsalt": "tersor", "text.color": INK, "text.parse_math": False,
    "xtick.labelcolor": MUTED, "xtick.labelsize": FONT_PX, "xtick.major.pad": 5, "xtick.major.size": 0,
    "ytick.labelcolor": MUTED, "ytick.labelsize": FONT_PX, "ytick.major.pad": 6, "ytick.major.size": 0,
}  # fmt: skip


@contextmanager
def house_style() -> Iterator[None]:
    """Use this style inside the block, regardless of the user's matplotlib settings."""
    from matplotlib import style

    with style.context(["default", _RC_PARAMS]):
        yield


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a series, never distinguished by colour alone; the first 56 numbers differ.

    Attributes:
        number: selects the colour and the marker.
        is_dashed: whether the line is dashed.
        is_hollow: whether the markers are outlines.
    """

    number: int
    is_dashed: bool = False
    is_hollow: bool = False

    @property
    def colour(self) -> str:
        """The colour on paper."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def line(self) -> dict[str, Any]:
        """Matplotlib's options for the line."""
        dash = _DASHED if self.is_dashed else _DASHES[self.number // len(COLOURS) % len(_DASHES)]
        return {"color": self.colour, "linestyle": dash}

    @property
    def marker(self) -> dict[str, Any]:
        """Matplotlib's options for the markers."""
        marker = _MARKERS[self.number % len(_MARKERS)]
        # adjust sizes so that all markers appear equally large
        size = {"s": 6.2, "D": 5.6, "^": 8, "v": 8}.get(marker, 7)
        fill = "none" if self.is_hollow else self.colour
        return {
            "color": self.colour,
            "marker": marker,
            "markersize": size,
            "markerfacecolor": fill,
        }


def text_width(text: str, size: float = FONT_PX) -> float:
    """Estimate the width of a text in pixels."""
    return len(text) * size * _TEXT_WIDTH
