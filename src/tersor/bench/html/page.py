"""A page built from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Final, Self

from tersor.bench.core.markup import escaped
from tersor.bench.html.figure import Figure, slug
from tersor.bench.html.links import Way, link_chooser
from tersor.bench.plots.style import SCREEN_COLOURS

GENERATOR: Final = '<meta name="generator" content="tersor">'
"""Stands in every page, so that a command can tell its own from a file it must not overwrite."""

_NUMBER: Final = re.compile(r"[~+-]?[\d.,]+(e[+-]?\d+)?[%!]?( \(.*\))?")


@cache
def _asset(name: str) -> str:
    return files("tersor.bench.html").joinpath(name).read_text(encoding="utf-8")


def _dark_figures() -> str:
    rules = [
        f'  svg [{kind}="{paper}"] {{ {kind}: {screen}; }}\n'
        for paper, screen in SCREEN_COLOURS.items()
        for kind in ("fill", "stroke")
    ]
    return f"@media (prefers-color-scheme: dark) {{\n{''.join(rules)}}}\n"


def _kind(cells: Iterable[str]) -> str:
    """Return the attribute of a column's cells: words stand at the left, numbers at the right."""
    is_number = all(_NUMBER.fullmatch(cell) for cell in cells if cell)
    return "" if is_number else ' class="words"'


@dataclass(slots=True)
class Page:
    """A page that grows from top to bottom; all text is escaped.

    Attributes:
        title: stands at its top.
        figures: the figures so far, by the name of their file.
    """

    title: str
    figures: dict[str, Figure] = field(default_factory=dict)
    _parts: list[str] = field(default_factory=list)
    _places: set[str] = field(default_factory=set)

    def _place(self, words: str) -> str:
        """Return a name for a place that the page has not yet."""
        name, number = slug(words), 2
        while name in self._places:
            name, number = f"{slug(words)}-{number}", number + 1
        self._places.add(name)
        return name

    def lead(self, text: str) -> Self:
        """Add the sentence that says what the page comes to."""
        self._parts.append(f'<p class="lead">{escaped(text)}</p>')
        return self

    def contents(self, lines: Sequence[tuple[str, str]]) -> Self:
        """List the sections, each with a sentence; ``section`` must follow in the same order."""
        before = set(self._places)
        items = [
            f'<li><a href="#{self._place(name)}">{escaped(name)}</a>: {escaped(sentence)}</li>'
            for name, sentence in lines
        ]
        self._places = before
        self._parts.append(f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>')
        return self

    def section(self, text: str) -> Self:
        """Begin a section that ``contents`` can lead to."""
        self._parts.append(f'<h2 id="{self._place(text)}">{escaped(text)}</h2>')
        return self

    def heading(self, text: str, level: int = 3) -> Self:
        """Begin a part of a section."""
        self._parts.append(f"<h{level}>{escaped(text)}</h{level}>")
        return self

    def text(self, text: str) -> Self:
        """Add a paragraph."""
        self._parts.append(f"<p>{escaped(text)}</p>")
        return self

    def code(self, text: str) -> Self:
        """Add lines to be typed."""
        self._parts.append(f"<pre><code>{escaped(text)}</code></pre>")
        return self

    def facts(self, facts: Mapping[str, str]) -> Self:
        """Add names and what they stand for."""
        lines = [f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in facts.items()]
        self._parts.append(f"<dl>{''.join(lines)}</dl>")
        return self

    def show(self, *figures: Figure) -> Self:
        """Add figures side by side; folded ones below, where a reader can open them.

        Charts without anything to draw are left out.
        """
        own = [self._named(figure) for figure in figures if figure.svg]
        shown = "".join(figure.render() for figure in own if not figure.is_folded)
        folded = [figure.render() for figure in own if figure.is_folded]
        if shown:
            self._parts.append(f'<div class="figures">{shown}</div>')
        if folded:
            inside = f'<div class="figures">{"".join(folded)}</div>'
            count = f"{len(folded)} more figure" + "s" * (len(folded) > 1)
            self._parts.append(f"<details><summary>{count}</summary>{inside}</details>")
        return self

    def _named(self, figure: Figure) -> Figure:
        name, number = figure.name, 2
        while name in self.figures:
            name, number = f"{figure.name}-{number}", number + 1
        self.figures[name] = replace(figure, name=name)
        return self.figures[name]

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Self:
        """Add a table; a script lets readers sort it by a column, whose numbers share a unit."""
        kinds = [_kind(row[k] for row in rows) for k in range(len(head))]
        cells = zip(head, kinds, strict=True)
        top = "".join(f'<th scope="col"{kind}>{escaped(cell)}</th>' for cell, kind in cells)
        body = "\n".join(
            "<tr>"
            + "".join(f"<td{k}>{escaped(cell)}</td>" for cell, k in zip(row, kinds, strict=True))
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(name)}"><table>'
            f"<caption>{escaped(name)}</caption>"
            f"<thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
        )
        return self

    def links(self, about: str, ways: Sequence[Way], gbit_s: float, note: str = "") -> Self:
        """Let readers choose a link, from the one given on, and see which way to send is fastest."""
        self._parts.append(link_chooser(about, ways, gbit_s, note))
        return self

    def render(self) -> str:
        """Return the whole page."""
        title = escaped(self.title)
        scripts = ("tables.js", "links.js", "figures.js")
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"{GENERATOR}\n<title>{title}</title>\n"
            # browsers ask for an icon unless a page has one
            '<link rel="icon" href="data:,">\n'
            f"<style>\n{_asset('page.css')}{_dark_figures()}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
            + "\n".join(self._parts)
            + "\n</main>\n"
            + "".join(f"<script>\n{_asset(name)}</script>\n" for name in scripts)
            + "</body>\n</html>\n"
        )
