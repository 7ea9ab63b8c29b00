"""A part of a report: blocks from top to bottom, which templates turn into HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from tersor.bench.report.figure import Figure

_NUMBER: Final = re.compile(r"[~+-]?[\d.,]+(e[+-]?\d+)?[%!]?( \(.*\))?")


class MeasuredEncoder(NamedTuple):
    """An encoder as it was measured: original over encoded bytes, and 10**9 original bytes per second."""

    name: str
    ratio: float
    encode_gbps: float
    decode_gbps: float


class Block(NamedTuple):
    """The name of a macro in ``templates/blocks.html``, and what it is called with."""

    kind: str
    values: Mapping[str, Any]


@dataclass(slots=True)
class Section:
    """What some results come to in a sentence, and what shows it.

    A site provides functions that return a section for results that are its own, or else None.
    """

    sentence: str = ""
    blocks: list[Block] = field(default_factory=list)

    def _add(self, kind: str, **values: Any) -> Self:
        self.blocks.append(Block(kind, values))
        return self

    def heading(self, text: str) -> Self:
        """Begin a part of the section."""
        return self._add("heading", text=text)

    def text(self, text: str) -> Self:
        """Add a paragraph."""
        return self._add("text", text=text)

    def code(self, text: str) -> Self:
        """Add lines to be typed."""
        return self._add("code", text=text)

    def facts(self, facts: Mapping[str, str]) -> Self:
        """Add names and what they stand for."""
        return self._add("facts", facts=facts)

    def show(self, *figures: Figure) -> Self:
        """Add figures side by side; folded ones below, where a reader can open them.

        Charts without anything to draw are left out.
        """
        own = [figure for figure in figures if figure.svg]
        return self._add("figures", figures=own) if own else self

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Self:
        """Add a table; a script lets readers sort it by a column, whose numbers share a unit."""
        kinds = ["" if _are_numbers(row[k] for row in rows) else "words" for k in range(len(head))]
        return self._add("table", name=name, head=head, rows=rows, kinds=kinds)

    def links(
        self, about: str, ways: Sequence[MeasuredEncoder], gbit_s: float, note: str = ""
    ) -> Self:
        """Let readers choose a link, from the one given on, and see which way to send is fastest.

        It is filled by ``links.js``, ends with the note, and stays hidden where no script runs.
        """
        # three significant digits more than are shown; a page has many of them
        values = [[way.name, *(float(f"{number:.6g}") for number in way[1:])] for way in ways]
        return self._add("links", about=about, ways=json.dumps(values), gbit_s=gbit_s, note=note)


def _are_numbers(cells: Iterable[str]) -> bool:
    """Whether a column stands at the right, as numbers do; words stand at the left."""
    return all(_NUMBER.fullmatch(cell) for cell in cells if cell)
