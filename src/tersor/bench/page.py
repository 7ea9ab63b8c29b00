"""Tables of a page, made from committed result rows: ``python -m tersor.bench.page PAGE...``.

A page says where a table belongs, and of which rows::

    <!-- rows: results/kernels.jsonl input=embeddings bound=0.03,none mib=1024 -->
    <!-- end -->

``goals:`` in place of ``rows:`` asks for the goals judged from the same file, and ``exchanges:`` for the
table of exchanges between ranks, chosen by ``input``, ``link`` and ``batch``. What lies between the two
lines is replaced; paths are relative to the folder above the page's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tersor.bench.exchange_tables import EXCHANGE_COLUMNS, exchange_cells
from tersor.bench.goals import evaluate_goals
from tersor.bench.rows import ResultRow, read_rows
from tersor.bench.tables import DEVICE_COLUMNS, device_cells
from tersor.errors import SpecError

_BLOCK: Final = re.compile(
    r"(?P<open><!-- (?P<kind>rows|goals|exchanges): (?P<path>\S+)(?P<filters>[^>]*?) -->\n)"
    r".*?(?P<close><!-- end -->)",
    re.DOTALL,
)
_FILTERS: Final = ("input", "bound", "mib", "link", "batch")
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
        else:
            filters = _parsed(match["filters"])
            rows = [row for row in read_rows(path) if _is_wanted(row, filters)]
            if match["kind"] == "exchanges":
                made = _table(EXCHANGE_COLUMNS, exchange_cells(rows))
            else:
                made = _table(DEVICE_COLUMNS, [device_cells(row) for row in rows])
        return f"{match['open']}\n{made}\n\n{match['close']}"

    return _BLOCK.sub(fill, text)


def _parsed(filters: str) -> dict[str, Sequence[str]]:
    pairs = [word.partition("=") for word in filters.split()]
    unknown = [name for name, _, _ in pairs if name not in _FILTERS]
    if unknown:
        raise SpecError(f"rows are chosen by {', '.join(_FILTERS)}, not by {unknown[0]!r}")
    return {name: values.split(",") for name, _, values in pairs}


def _is_wanted(row: ResultRow, filters: Mapping[str, Sequence[str]]) -> bool:
    bound = "none" if row.relative_bound is None else f"{row.relative_bound:g}"
    facts = {"input": row.input, "bound": bound, "mib": str(round(row.original_nbytes / 2**20))}
    if row.exchange is not None:
        times = row.exchange
        facts |= {"link": times.link or times.network, "batch": str(times.batch)}
    return all(facts.get(name) in values for name, values in filters.items())


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
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text, page.resolve().parent.parent), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
