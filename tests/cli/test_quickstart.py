from __future__ import annotations

import json

import pytest

from tersor.cli import quickstart


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    monkeypatch.setattr(quickstart, "_MAX_ROWS", 50)
    monkeypatch.setattr(quickstart, "_BATCH", 64)
    monkeypatch.setattr(quickstart, "_TEST_SAMPLES", 256)


def test_both_runs_are_compared_and_written_down(tersor, tmp_path) -> None:
    folder = tmp_path / "run"
    done = tersor.ok("quickstart", "--json", "--steps", "6", "--run", str(folder)).json
    assert set(done["runs"]) == {"uncompressed", "adaptive"}
    plain, small = done["runs"]["uncompressed"], done["runs"]["adaptive"]
    assert plain["forward"]["ratio"] == plain["backward"]["ratio"] == 1.0
    assert small["forward"]["original_nbytes"] == plain["forward"]["original_nbytes"]
    assert small["forward"]["ratio"] > 4
    assert small["backward"]["ratio"] == 2.0
    assert abs(small["auc"] - plain["auc"]) < 0.05
    assert [table["table"] for table in done["tables"]] == list(range(26))
    assert json.loads((folder / "result.json").read_text())["runs"] == done["runs"]
    for name in ("uncompressed", "adaptive"):
        lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        assert {"eval", "exchange"} <= {line["kind"] for line in lines}
    assert [step["gbit_s"] for step in done["links"]["steps"]] == [1.0, 10.0, 100.0]
    assert all(step["speedup"] > 0 for step in done["links"]["steps"])
    assert json.loads((folder / "result.json").read_text())["links"] == done["links"]
    page = (folder / "report.html").read_text()
    assert "On a link of 1 / 10 / 100 Gbit/s a step would be" in page
    assert done["links"]["how"] in page
    assert f"<td>{done['links']['steps'][0]['speedup']:.2f}</td>" in page
    assert page.count("<svg") == 6
    assert "src=" not in page
    assert page.count('href="') == page.count('href="data:') + page.count('href="#')
    assert f"tersor quickstart --steps 6 --run {folder} --json" in page


def test_people_see_the_tables_and_what_is_next(tersor, tmp_path) -> None:
    shown = tersor.ok("quickstart", "--steps", "2", "--run", str(tmp_path / "run")).out
    for words in (
        "times fewer bytes",
        "On a link of 1 / 10 / 100 Gbit/s a step would be",
        "times as fast",
        "sends its bytes over a link per rank",
        "AUC",
        "ms per step in exchange",
        "tight",
        "tersor train dlrm",
    ):
        assert words in shown


def test_one_rank_has_no_link_to_predict_for(tersor, tmp_path) -> None:
    folder = str(tmp_path / "run")
    done = tersor.ok("quickstart", "--steps", "2", "--ranks", "1", "--run", folder, "--json").json
    assert done["links"] is None
    assert "On a link" not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "word"),
    [(("--steps", "0"), "--steps"), (("--ranks", "0"), "--ranks"), (("--ranks", "3"), "--ranks")],
)
def test_wrong_numbers_are_refused(tersor, options, word) -> None:
    done = tersor("quickstart", *options)
    assert done.code == 2
    assert word in done.err
