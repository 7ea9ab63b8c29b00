"""One page that needs nothing else: text, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Self

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; display: block; overflow-x: auto; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { background: #f4f4f4; }
svg { width: 100%; height: auto; max-width: 42rem; display: block; margin: 1rem 0; }
pre { background: #f4f4f4; padding: 0.8rem; overflow-x: auto; }
"""


@dataclass(slots=True)
class Page:
    """A page that grows from top to bottom; all text is escaped."""

    title: str
    _parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> Self:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")
        return self

    def text(self, text: str) -> Self:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")
        return self

    def code(self, text: str) -> Self:
        """Add lines to be typed."""
        self._parts.append(f"<pre>{escape(text)}</pre>")
        return self

    def figure(self, svg: str) -> Self:
        """Add an element of ``bench.svg``, as it is."""
        self._parts.append(svg)
        return self

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Self:
        """Add a table."""
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        self._parts.append(f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>")
        return self

    def render(self) -> str:
        """Return the whole page."""
        title = escape(self.title)
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
            + "\n".join(self._parts)
            + "</body></html>\n"
        )
