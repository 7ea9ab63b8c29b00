"""A figure of a page, which can also be saved as a file."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart of ``bench.plots``.

    Attributes:
        name: name of its file without ``.svg``; see ``slug``.
        svg: the SVG element; empty if there is nothing to draw.
        caption: what it shows and how to read it.
        is_folded: whether it is collapsed until a reader opens it.
    """

    name: str
    svg: str
    caption: str
    is_folded: bool = False


def slug(*words: str) -> str:
    """Convert words to the name of a file or of an anchor in a page.

    Example:
        >>> slug("2026-11 kernels", "ratio & speed", "0.03")
        '2026-11-kernels-ratio-speed-0.03'
    """
    text = "-".join(words).lower()
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-.")[:120] or "figure"
