"""Fill a page's tables from committed result rows: ``python -m tersor.bench.page PAGE...``.

Markers on a page say where a table belongs and which rows it shows::

    <!-- rows: results/kernels.jsonl input=embeddings codec=flat bound=0.03,none mib=1024 -->
    <!-- end -->

``goals:`` in place of ``rows:`` inserts the goals judged from the same file, with ``only=measured`` those that its rows can
judge; the sites' ``blocks`` define the other keywords. The text between the two lines is replaced. Paths are relative to the page's folder, or to
the parent of ``docs`` for pages in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tersor.bench.core.row_file import read_rows
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.tables import GOAL_COLUMNS, goal_cells, markdown_table
from tersor.bench.site import PageBlock
from tersor.bench.sites import evaluate_goals, page_blocks
from tersor.errors import SpecError

_MARKED: Final = re.compile(
    r"(?P<open><!-- (?P<kind>[a-z-]+): (?P<path>\S+\.jsonl)(?P<options>[^>]*?) -->\n)"
    r".*?(?P<close><!-- end -->)",
    re.DOTALL,
)
_VERDICTS: Final = {True: "met", False: "**missed**", None: "not measured"}


def filled(text: str, root: Path) -> str:
    """Return the page with every table regenerated from the rows below ``root``.

    Raises:
        SpecError: a marker's keyword or options are unknown.
        CorruptDataError: a file contains something other than rows.
    """
    blocks: dict[str, PageBlock] = {"goals": _goals, **page_blocks()}

    def fill(match: re.Match[str]) -> str:
        if match["kind"] not in blocks:
            raise SpecError(f"blocks of a page are {', '.join(blocks)}, not {match['kind']!r}")
        path = root / match["path"]
        if path.exists():
            words = (word.partition("=") for word in match["options"].split())
            options = {name: value for name, _, value in words}
            made = blocks[match["kind"]](read_rows(path), options)
        else:
            made = f"Not measured yet: `{match['path']}` is not there."
        return f"{match['open']}\n{made}\n\n{match['close']}"

    return _MARKED.sub(fill, text)


def _goals(rows: Sequence[ResultRow], options: Mapping[str, str]) -> str:
    known = {"only": "measured"}
    if not options.items() <= known.items():
        raise SpecError(f"goals of a page take only=measured, not {' '.join(options)}")
    goals = [goal for goal in evaluate_goals(rows) if not options or goal.measured is not None]
    return markdown_table(GOAL_COLUMNS, (goal_cells(goal, _VERDICTS) for goal in goals))


def main(paths: Sequence[str]) -> int:
    """Fill the pages in place and return the exit code."""
    for name in paths:
        page = Path(name)
        folder = page.resolve().parent
        root = folder.parent if folder.name == "docs" else folder
        page.write_text(filled(page.read_text(encoding="utf-8"), root), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
