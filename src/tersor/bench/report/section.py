"""A section of a report: a list of blocks that templates convert to HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from tersor.bench.report.figure import Figure

_NUMBER: Final = re.compile(r"[~+-]?[\d.,]+(e[+-]?\d+)?[%!]?( \(.*\))?")


class MeasuredEncoder(NamedTuple):
    """The measured ratio of an encoder, and its speeds in 10**9 original bytes per second."""

    name: str
    ratio: float
    encode_gbps: float
    decode_gbps: float


class Block(NamedTuple):
    """The name of a macro in ``templates/blocks.html`` and its arguments."""

    kind: str
    values: Mapping[str, Any]


@dataclass(slots=True)
class Section:
    """A summary sentence about results, and the blocks that present them.

    A site provides functions that return a section for its own results, and None for others.
    """

    sentence: str = ""
    blocks: list[Block] = field(default_factory=list)

    def _add(self, kind: str, **values: Any) -> Self:
        self.blocks.append(Block(kind, values))
        return self

    def heading(self, text: str) -> Self:
        """Add a heading."""
        return self._add("heading", text=text)

    def text(self, text: str) -> Self:
        """Add a paragraph."""
        return self._add("text", text=text)

    def code(self, text: str) -> Self:
        """Add a code block, such as a command line."""
        return self._add("code", text=text)

    def facts(self, facts: Mapping[str, str]) -> Self:
        """Add a list of names and values."""
        return self._add("facts", facts=facts)

    def show(self, *figures: Figure) -> Self:
        """Add figures side by side; folded ones go below, where a reader can open them.

        Charts without anything to draw are omitted.
        """
        own = [figure for figure in figures if figure.svg]
        return self._add("figures", figures=own) if own else self

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Self:
        """Add a table that readers can sort by column; the numbers of a column must share a unit."""
        kinds = ["" if _are_numbers(row[k] for row in rows) else "words" for k in range(len(head))]
        return self._add("table", name=name, head=head, rows=rows, kinds=kinds)

    def links(
        self, about: str, encoders: Sequence[MeasuredEncoder], gbit_s: float, note: str = ""
    ) -> Self:
        """Add a control that shows the fastest encoder for a bandwidth, initially ``gbit_s``.

        ``links.js`` fills it; without scripts it stays hidden. The note is shown at its end.
        """
        # three more significant digits than are shown; more would bloat a page with many values
        values = [[one.name, *(float(f"{number:.6g}") for number in one[1:])] for one in encoders]
        return self._add(
            "links", about=about, encoders=json.dumps(values), gbit_s=gbit_s, note=note
        )


def _are_numbers(cells: Iterable[str]) -> bool:
    """Return whether all nonempty cells of a column are numbers, which are right-aligned."""
    return all(_NUMBER.fullmatch(cell) for cell in cells if cell)
