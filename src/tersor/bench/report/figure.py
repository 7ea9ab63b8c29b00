"""A figure of a page, and the file it can be taken away as."""

from __future__ import annotations

import re
from dataclasses import dataclass


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


def slug(*words: str) -> str:
    """Return words as the name of a file or of a place in a page.

    Example:
        >>> slug("2026-11 kernels", "ratio & speed", "0.03")
        '2026-11-kernels-ratio-speed-0.03'
    """
    text = "-".join(words).lower()
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-.")[:120] or "figure"
