from __future__ import annotations

from pathlib import Path

import pytest
from rich.text import Text

from tersor.bench import core, page, sites
from tersor.bench.core.goal import Goal
from tersor.bench.core.row_file import RowFile
from tersor.bench.embeddings.site import EMBEDDINGS
from tersor.bench.kernels.site import KERNELS
from tersor.bench.report import build_report, read_runs
from tersor.bench.report.section import Section
from tersor.bench.site import SiteBench
from tersor.bench.sites import (
    SITES,
    evaluate_goals,
    page_blocks,
    report_sections,
    rows_by_site,
    site_tables,
)
from tersor.errors import SpecError
from tests.bench.core.test_rows import make_row
from tests.bench.report import runs as made

TRIAL = SiteBench(
    name="trial",
    suites=("trial",),
    tables=lambda rows: [Text(f"{len(rows)} trials")],
    goals=lambda rows: [Goal("ratio of a trial", 5.0, rows[0].ratio, rows[0].input)],
    blocks={"trials": lambda rows, options: f"{len(rows)} trials of {options['input']}"},
    sections=lambda: [lambda run, links: Section(f"{len(run.rows)} rows of trials.")],
)


def test_every_folder_of_a_site_is_in_the_list_and_no_word_or_suite_is_two_sites():
    folders = {path.parent.name for path in Path(core.__file__).parents[1].glob("*/site.py")}
    assert folders - {"core"} == {site.name for site in SITES}
    for names in ([site.suites for site in SITES], [site.blocks for site in SITES]):
        words = [word for some in names for word in some]
        assert len(words) == len(set(words))


def test_rows_of_a_file_with_several_sites_go_to_their_own():
    between, look_ups, codecs = made.exchange_rows(), made.lookup_rows(), made.kernel_rows()
    other = make_row(suite="unheard-of")
    found = rows_by_site([*between, *codecs, other, *look_ups])
    assert found == [(EMBEDDINGS, [*between, *look_ups]), (KERNELS, codecs)]
    names = [goal.name for goal in evaluate_goals([*between, *codecs, *look_ups])]
    assert names == [
        goal.name for rows in (between, look_ups, codecs) for goal in evaluate_goals(rows)
    ]


def test_a_new_site_needs_nothing_but_its_place_in_the_list(tmp_path, monkeypatch):
    monkeypatch.setattr(sites, "SITES", (*SITES, TRIAL))
    row = make_row(suite="trial")
    assert [goal.met for goal in evaluate_goals([row])] == [True]
    assert [str(table) for table in site_tables([row])] == ["1 trials"]
    with RowFile(tmp_path / "rows.jsonl") as file:
        file.append(row)
    report = build_report(read_runs([str(tmp_path / "rows.jsonl")]), report_sections(), title="t")
    shown = report.render()
    assert "1 rows of trials." in shown
    assert "All rows" not in shown, "another site shows these rows too"
    text = "<!-- trials: rows.jsonl input=any -->\n<!-- end -->"
    assert "1 trials of any" in page.filled(text, tmp_path)


@pytest.mark.parametrize("word", ["rowz", "plan-b"])
def test_a_word_that_no_site_has_is_refused_with_those_that_exist(word, tmp_path):
    text = f"<!-- {word}: results/rows.jsonl -->\n<!-- end -->"
    with pytest.raises(SpecError, match=f"goals, {', '.join(page_blocks())}, not '{word}'"):
        page.filled(text, tmp_path)
