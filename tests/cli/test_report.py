from __future__ import annotations

import pytest

from tests.bench.report import runs as made


def test_a_report_of_every_kind_of_run_is_written(tersor, tmp_path) -> None:
    paths = made.write_all(tmp_path)
    done = tersor.ok("report", *paths, "--figures", "figures", "--title", "My runs", "--json").json
    page = (tmp_path / "report.html").read_text()
    assert "<h1>My runs</h1>" in page
    assert done["output"] == "report.html"
    assert done["nbytes"] == len(page.encode())
    assert [run["path"] for run in done["runs"]] == paths
    assert all((tmp_path / name).read_text().startswith("<svg") for name in done["figures"])
    assert f"tersor report --figures figures --title &#39;My runs&#39; --json {paths[0]}" in page


def test_people_see_a_sentence_per_run_and_where_the_page_is(tersor, tmp_path) -> None:
    paths = made.write_all(tmp_path)
    shown = tersor.ok("report", *paths, "-o", "pages/all.html").out
    assert (tmp_path / "pages" / "all.html").exists()
    for words in (
        "kernels: 11 rows",
        "accuracy: 3 pairs",
        "20.0 times fewer bytes",
        "pages/all.html",
    ):
        assert words in shown


def test_an_earlier_report_is_replaced_but_no_other_file(tersor, tmp_path) -> None:
    file = str(made.write_lines(tmp_path / "k.jsonl", made.kernel_rows()))
    tersor.ok("report", file)
    tersor.ok("report", file)
    assert "is no report" in tersor.refused("report", file, "-o", file)
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    assert "--force" in tersor.refused("report", file, "-o", "mine.html")
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"
    tersor.ok("report", file, "-o", "mine.html", "--force")
    assert "folder" in tersor.refused("report", file, "-o", str(tmp_path))


def test_a_figure_is_written_over_no_file_unasked(tersor, tmp_path) -> None:
    file = str(made.write_lines(tmp_path / "k.jsonl", made.kernel_rows()))
    name = tersor.ok("report", file, "--figures", "figures", "--json").json["figures"][-1]
    (tmp_path / "report.html").unlink()
    (tmp_path / name).write_text("mine")
    # not even the page is written
    assert "--force" in tersor.refused("report", file, "--figures", "figures")
    assert (tmp_path / name).read_text() == "mine"
    tersor.ok("report", file, "--figures", "figures", "--force")
    assert (tmp_path / name).read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        (None, "there is no file or folder", 2),
        ("", "holds no rows", 2),
        ("nonsense\n", "is not JSON", 1),
        ('{"schema": 1}\n', "is not a result row", 1),
        ('{"kind": "plan"}\n', "is nothing that reports are made of", 2),
        ("[1]\n", "is nothing that reports are made of", 2),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(tersor, tmp_path, text, words, code) -> None:
    if text is not None:
        (tmp_path / "x.jsonl").write_text(text)
    assert words in tersor.refused("report", "x.jsonl", code=code)


def test_plans_among_results_are_passed_over(tersor, tmp_path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    made.write_lines(folder / "k.jsonl", made.kernel_rows())
    (folder / "plan.jsonl").write_text('{"kind": "plan"}\n')
    tersor.ok("report", "results")
    page = (tmp_path / "report.html").read_text()
    assert "results/k.jsonl" in page
    assert "plan.jsonl" not in page
    (folder / "k.jsonl").unlink()
    assert "results holds no run" in tersor.refused("report", "results", "--force")


def test_links_are_those_that_were_asked_for(tersor, tmp_path) -> None:
    file = str(made.write_lines(tmp_path / "k.jsonl", [*made.kernel_rows(), *made.lookup_rows()]))
    tersor.ok("report", file, "--bandwidth", "2.5gbit,800mbit,2500mbit")
    page = (tmp_path / "report.html").read_text()
    assert page.count('data-gbit="2.5"') == 2
    assert "best at 2.5 Gbit/s" in page
    assert page.count("x at 0.8 Gbit/s</th>") == 1
    assert "10 Gbit/s</th>" not in page
    assert "as in 100gbit, not 'fast'" in tersor.refused("report", file, "--bandwidth", "fast")
    assert "at least one link" in tersor.refused("report", file, "--bandwidth", ",")


def test_a_report_needs_a_run(tersor) -> None:
    assert "RUN" in tersor.refused("report")


def test_a_quickstart_folder_makes_the_page_that_quickstart_made(tersor, tmp_path) -> None:
    made.write_all(tmp_path)
    tersor.ok("report", "quickstart", "--title", "tersor quickstart")
    page = (tmp_path / "report.html").read_text()
    assert "20.0 times fewer bytes forward" in page
    assert "<code>tersor quickstart</code>" in page
