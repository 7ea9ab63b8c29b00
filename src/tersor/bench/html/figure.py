"""A figure of a page, and the file it can be taken away as."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tersor.bench.core.markup import escaped


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart of ``bench.plots``.

    Attributes:
        name: of its file, without ``.svg``; see ``slug``.
        svg: the element, as it is; a chart without anything to draw is empty.
        caption: what it shows and how to read it.
        is_folded: whether a reader sees it only after asking for more.
    """

    name: str
    svg: str
    caption: str
    is_folded: bool = False

    def render(self) -> str:
        """Return the figure with its caption and a link that ``figures.js`` lets save it."""
        link = (
            f'<a hidden download="{escaped(self.name)}.svg" href="#">'
            f'<span class="hidden">{escaped(self.name)}: </span>SVG</a>'
        )
        caption = f"<figcaption>{escaped(self.caption)} {link}</figcaption>"
        return f"<figure>{self.svg}{caption}</figure>"


def slug(*words: str) -> str:
    """Return words as the name of a file or of a place in a page.

    Example:
        >>> slug("2026-11 kernels", "ratio & speed", "0.03")
        '2026-11-kernels-ratio-speed-0.03'
    """
    text = "-".join(words).lower()
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-.")[:120] or "figure"
