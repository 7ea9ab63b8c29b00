"""A self-contained page: sections with sortable tables and figures that can be saved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from tersor.bench.plots.style import SCREEN_COLOURS
from tersor.bench.plots.svg_text import printable
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.section import Section

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR: Final = '<meta name="generator" content="tersor">'
"""A tag in every page, by which commands recognise pages of ours, which they may overwrite."""


class Chapter(NamedTuple):
    """A section with its heading and its anchor in the page; both are empty if it has no name."""

    name: str
    place: str
    section: Section


@dataclass(slots=True)
class Page:
    """A page that grows from top to bottom; the templates escape all text.

    Attributes:
        title: title of the page.
        lead: summary at the top.
        chapters: the sections so far.
        figures: the figures so far, by the name of their file.
    """

    title: str
    lead: str = ""
    chapters: list[Chapter] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)

    def add(self, section: Section, name: str = "") -> Self:
        """Add a section; the table of contents lists it if it has a name and a sentence."""
        places = {chapter.place for chapter in self.chapters}
        place = _unused(slug(name), places) if name else ""
        self.chapters.append(Chapter(name, place, section))
        for block in section.blocks:
            if block.kind == "figures":
                figures: list[Figure] = block.values["figures"]
                figures[:] = [self._named(figure) for figure in figures]
        return self

    def _named(self, figure: Figure) -> Figure:
        name = _unused(figure.name, self.figures)
        self.figures[name] = replace(figure, name=name)
        return self.figures[name]

    def render(self) -> str:
        """Return the page as HTML."""
        return _environment().get_template("page.html").render(page=self)


def _unused(name: str, taken: Collection[str]) -> str:
    """Return a name, or else the first of ``name-2``, ``name-3``, ... that is not taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def shown(value: Any) -> Any:
        return printable(value) if type(value) is str else value

    def source_of(name: str) -> str:
        return loader.get_source(environment, name)[0]

    loader = PackageLoader("tersor.bench.report")
    environment = Environment(
        loader=loader, autoescape=True, finalize=shown, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals |= {
        "source_of": source_of, "generator": GENERATOR, "screen_colours": SCREEN_COLOURS
    }  # fmt: skip
    return environment
