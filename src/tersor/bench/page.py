"""Tables of a page, made from committed result rows: ``python -m tersor.bench.page PAGE...``.

A page says where a table belongs, and of which rows::

    <!-- rows: results/kernels.jsonl input=embeddings codec=flat bound=0.03,none mib=1024 -->
    <!-- end -->

``goals:`` in place of ``rows:`` asks for the goals judged from the same file, and ``exchanges:`` for the
table of exchanges between ranks, chosen by ``input``, ``link`` and ``batch``. ``lookups:`` asks for the
encoders on the look-ups of a dump, chosen by ``input``, and ``lookup-tables:`` for its tables; ``link`` is
what speed-ups are predicted for. ``plan:``, ``plan-sweep:``
and ``plan-check:`` ask for predictions from the file, with options as ``tersor plan`` has. What lies
between the two lines is replaced; paths are relative to the page's folder, or the one above ``docs``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tersor.bench.core.blocks import TITLES
from tersor.bench.core.rows import ResultRow, read_rows
from tersor.bench.core.tables import DEVICE_COLUMNS, device_cells, figure_cells, figure_names
from tersor.bench.embeddings.exchange_tables import EXCHANGE_COLUMNS, exchange_cells
from tersor.bench.embeddings.lookups.sums import places
from tersor.bench.embeddings.lookups.tables import (
    encoder_cells,
    encoder_columns,
    table_cells,
    table_columns,
)
from tersor.bench.embeddings.planning.blocks import check_block, plan_block, sweep_block
from tersor.bench.goals import evaluate_goals
from tersor.errors import SpecError
from tersor.workloads.network import Bandwidth

_BLOCK: Final = re.compile(
    r"(?P<open><!-- (?P<kind>rows|goals|exchanges|lookups|lookup-tables|plan[a-z-]*): "
    r"(?P<path>\S+)(?P<filters>[^>]*?) -->\n)"
    r".*?(?P<close><!-- end -->)",
    re.DOTALL,
)
_FILTERS: Final = ("input", "codec", "bound", "mib", "link", "batch")
_PLANS: Final = {"plan": plan_block, "plan-sweep": sweep_block, "plan-check": check_block}
_VERDICTS: Final = {True: "met", False: "**missed**", None: "not measured"}


def filled(text: str, root: Path) -> str:
    """Return the page with every table made anew from the rows below ``root``.

    Raises:
        SpecError: a marker asks for something unknown.
        CorruptDataError: a file holds something else than rows.
    """

    def fill(match: re.Match[str]) -> str:
        path = root / match["path"]
        if not path.exists():
            made = f"Not measured yet: `{match['path']}` is not there."
        elif match["kind"] == "goals":
            made = _goals(read_rows(path))
        elif match["kind"].startswith("plan"):
            made = _plan(match["kind"], read_rows(path), match["filters"])
        else:
            filters = _parsed(match["filters"])
            # rows of look-ups have no link: theirs is the one that speed-ups are predicted for
            links = filters.pop("link", ["1gbit"]) if "lookup" in match["kind"] else []
            rows = [row for row in read_rows(path) if _is_wanted(row, filters)]
            if links:
                made = _lookups(rows, links, is_by_table=match["kind"] == "lookup-tables")
            elif match["kind"] == "exchanges":
                made = _table(EXCHANGE_COLUMNS, exchange_cells(rows))
            else:
                made = _rows(rows)
        return f"{match['open']}\n{made}\n\n{match['close']}"

    return _BLOCK.sub(fill, text)


def _plan(kind: str, rows: Sequence[ResultRow], options: str) -> str:
    if kind not in _PLANS:
        raise SpecError(f"blocks of plans are {', '.join(_PLANS)}, not {kind!r}")
    said = {name: value for name, _, value in (word.partition("=") for word in options.split())}
    columns, cells, sentences = _PLANS[kind](rows, said)
    return "\n".join([_table(columns, cells), "", *(f"- {sentence}" for sentence in sentences)])


def _parsed(filters: str) -> dict[str, Sequence[str]]:
    pairs = [word.partition("=") for word in filters.split()]
    unknown = [name for name, _, _ in pairs if name not in _FILTERS]
    if unknown:
        raise SpecError(f"rows are chosen by {', '.join(_FILTERS)}, not by {unknown[0]!r}")
    return {name: values.split(",") for name, _, values in pairs}


def _is_wanted(row: ResultRow, filters: Mapping[str, Sequence[str]]) -> bool:
    traits = row.traits()
    return all(traits.get(name) in values for name, values in filters.items())


def _lookups(rows: Sequence[ResultRow], links: Sequence[str], *, is_by_table: bool) -> str:
    bandwidths = {name: Bandwidth.parse(name).gbps for name in links}
    head, cells = (table_columns, table_cells) if is_by_table else (encoder_columns, encoder_cells)
    made = [_table(head(bandwidths), cells(place, bandwidths)) for place in places(rows)]
    return "\n\n".join(made)


def _rows(rows: Sequence[ResultRow]) -> str:
    names = figure_names(rows)
    columns = [*DEVICE_COLUMNS, *(TITLES[name] for name in names)]
    return _table(columns, [[*device_cells(row), *figure_cells(row, names)] for row in rows])


def _goals(rows: Sequence[ResultRow]) -> str:
    cells = [
        [
            goal.name,
            f"{goal.target:g}",
            "" if goal.measured is None else f"{goal.measured:.4g}",
            _VERDICTS[goal.met],
            goal.detail,
        ]
        for goal in evaluate_goals(rows)
    ]
    return _table(("goal", "target", "measured", "", "decided by"), cells)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(paths: Sequence[str]) -> int:
    """Fill the pages in place; returns the exit code."""
    for name in paths:
        page = Path(name)
        folder = page.resolve().parent
        root = folder.parent if folder.name == "docs" else folder
        page.write_text(filled(page.read_text(encoding="utf-8"), root), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
