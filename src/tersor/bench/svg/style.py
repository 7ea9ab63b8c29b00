"""How things drawn are told apart: by colour, by marker and by dash, never by colour alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tersor.bench.core.markup import escaped

COLOURS: Final = (
    "#0060b0", "#c2410c", "#14804a", "#8b3fb3", "#8a6100", "#00787f", "#b3206c", "#5a5a5a",
)  # fmt: skip
"""Each has at least 4.5 : 1 of contrast on white; a page has lighter ones for a dark screen."""
INK, MUTED, GRID = "#222222", "#555555", "#dddddd"
FONT_PX: Final = 13
TEXT_WIDTH: Final = 0.6
"""Mean width of a character over the font's size, for the wider of the fonts taken for sans-serif."""
_DASHES: Final = ("", "7 3", "2 3")
_SHAPES: Final = (
    '<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"{paint}/>',
    '<rect x="{left:.1f}" y="{top:.1f}" width="{d:.1f}" height="{d:.1f}"{paint}/>',
    '<path d="M{x:.1f} {top:.1f}L{right:.1f} {bottom:.1f}H{left:.1f}Z"{paint}/>',
    '<path d="M{x:.1f} {top:.1f}L{right:.1f} {y:.1f}L{x:.1f} {bottom:.1f}L{left:.1f} {y:.1f}Z"{paint}/>',
    '<path d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}M{right:.1f} {top:.1f}L{left:.1f} {bottom:.1f}"{paint}/>',
    '<path d="M{x:.1f} {bottom:.1f}L{right:.1f} {top:.1f}H{left:.1f}Z"{paint}/>',
    '<path d="M{x:.1f} {top:.1f}V{bottom:.1f}M{left:.1f} {y:.1f}H{right:.1f}"{paint}/>',
)


@dataclass(frozen=True, slots=True)
class Look:
    """One of many ways to draw a series; the first 56 numbers differ in colour and marker."""

    number: int
    is_dashed: bool = False
    is_hollow: bool = False

    @property
    def group(self) -> str:
        """The opening tag that gives the colour."""
        colour = self.number % len(COLOURS)
        return f'<g class="s{colour}" color="{COLOURS[colour]}">'

    @property
    def dash(self) -> str:
        """The attribute of a line, if it has one."""
        dash = "5 4" if self.is_dashed else _DASHES[self.number // len(COLOURS) % len(_DASHES)]
        return f' stroke-dasharray="{dash}"' if dash else ""

    def marker(self, x: float, y: float, r: float = 4.0) -> str:
        """Return the marker at a place."""
        shape = self.number % len(_SHAPES)
        # areas look larger than outlines of the same radius
        r = r * (0.88 if shape == 1 else 1.15 if shape in (2, 3, 5) else 1.0)
        fill = "none" if self.is_hollow or shape in (4, 6) else "currentColor"
        paint = f' fill="{fill}" stroke="currentColor" stroke-width="1.6"'
        return _SHAPES[shape].format(
            x=x, y=y, r=r, d=2 * r, left=x - r, right=x + r, top=y - r, bottom=y + r, paint=paint
        )


def text_width(text: str, size: float = FONT_PX) -> float:
    """Return about how wide a text is drawn."""
    return len(text) * size * TEXT_WIDTH


def text(
    x: float, y: float, words: str, anchor: str = "start", colour: str = INK, **options: str
) -> str:
    """Return a text element; ``options`` are further attributes, with ``_`` for ``-``."""
    name = {INK: "ink", MUTED: "muted"}.get(colour, "") + (" halo" if "stroke" in options else "")
    extra = "".join(
        f' {key.replace("_", "-")}="{escaped(value)}"' for key, value in options.items()
    )
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{name}" {place} fill="{colour}"{extra}>{escaped(words)}</text>'
