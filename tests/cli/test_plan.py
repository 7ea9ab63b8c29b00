from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.embeddings.planning.check import check
from tersor.bench.embeddings.planning.description import KEYS, Workload
from tersor.bench.page import filled
from tersor.errors import SpecError
from tests.arch.source_files import REPOSITORY
from tests.bench.embeddings.planning.test_planning import ROWS
from tests.bench.report.runs import lookup_rows

RESULTS = REPOSITORY / "results"
PAGE = (REPOSITORY / "docs" / "plan.md").read_text(encoding="utf-8")
PLAN = ("plan", "--rows", "rows.jsonl", "--latency", "0us")


@pytest.fixture(autouse=True)
def _rows(tersor) -> None:
    with RowFile("rows.jsonl") as file:
        for row in ROWS:
            file.append(row)
    Path("log.jsonl").write_text('{"kind": "run", "step": 0}\n')
    Path("dense.toml").write_text("allreduce_mbytes = 40\n")


def best(done, ranks: int) -> str:
    [line] = [x for x in done.json["plan"] if x["is_best"] and x["num_ranks"] == ranks]
    return str(line["codec"])


def test_a_plan_goes_from_2_to_4096_ranks_and_is_written_as_json_lines(tersor) -> None:
    done = tersor.ok(*PLAN, "--inter", "10gbit", "--output", "plan.jsonl", "--json")
    lines = [json.loads(line) for line in Path("plan.jsonl").read_text().splitlines()]
    assert lines == done.json["plan"]
    assert {line["num_ranks"] for line in lines} == {2, 8, 64, 512, 4096}
    assert {line["codec"] for line in lines} == {"float32", "half", "rows"}
    assert "54 rows of dlrm: 4 ranks, links of 100mbit, 1gbit, 10gbit" in done.err
    assert "~ are guesses: slices of 64 to 1,024 rows were measured" in done.err
    assert "--force" in tersor.refused(*PLAN, "--output", "plan.jsonl")
    tersor.ok(*PLAN, "--output", "plan.jsonl", "--force")


def test_a_reader_who_goes_from_1_to_400_gbit_sees_the_advice_change_and_why(tersor) -> None:
    asked = (*PLAN, "--ranks", "64")
    slow, fast = (tersor.ok(*asked, "--inter", f"{n}gbit", "--json") for n in (1, 400))
    assert (best(slow, 64), best(fast, 64)) == ("rows", "half")
    shown = tersor.ok(*asked, "--bandwidth-sweep", "1gbit..400gbit", "--plot", "plan.svg").out
    words = " ".join(shown.split())
    assert "100gbit" not in tersor.ok(*asked, "--bandwidth-sweep", "1gbit..4gbit").out
    assert "on half beats rows: it codes" in words
    for bandwidth in ("1gbit", "20gbit", "400gbit"):
        assert bandwidth in words
    assert Path("plan.svg").read_text().startswith("<svg")


def test_options_go_before_the_cluster_file(tersor) -> None:
    Path("cluster.toml").write_text('inter = "1gbit"\nbatch = 4096\ncompute_ms = 3.0\n')
    asked = ("--cluster", "cluster.toml", "--ranks", "4", "--json")
    [line, *_] = tersor.ok(*PLAN, *asked).json["plan"]
    assert line["cluster"]["inter_bits_per_s"] == 1e9
    assert line["compute_s"] == pytest.approx(3e-3)
    assert line["rows_per_slice"] == 1024
    [line, *_] = tersor.ok(*PLAN, *asked, "--inter", "2gbit", "--batch-per-rank", "7").json["plan"]
    assert line["cluster"]["inter_bits_per_s"] == 2e9
    assert line["rows_per_slice"] == 7


def test_rows_of_codecs_on_a_gpu_are_planned_with_too(tersor) -> None:
    asked = ("plan", "--rows", str(RESULTS / "2026-11-kernels-h200.jsonl"), "--bound", "0.03")
    batch = ("--batch-per-rank", "65536", "--ranks", "64")
    done = tersor.ok(*asked, *batch, "--codecs", "flat-device,rows-device", "--json")
    assert {line["codec"] for line in done.json["plan"]} == {
        "float32",
        "flat-device",
        "rows-device",
    }
    words = "steps are without computing (--compute-ms) and the all-reduce (--allreduce-mbytes)"
    assert words in done.err
    described = ("--compute-ms", "9", "--allreduce-mbytes", "5")
    assert "steps are without" not in tersor.ok(*asked, *batch, *described).err
    assert not any(line["is_extrapolated"] for line in done.json["plan"])


def test_a_trace_of_another_batch_is_reported(tersor) -> None:
    train = ("train", "dlrm", "--max-rows", "30", "--batch", "64", "--eval-samples", "64")
    tersor.ok(*train, "--steps", "4", "--run-dir", "run", "--log-every", "2")
    asked = ("plan", "--rows", "rows.jsonl", "--trace", "run/log.jsonl", "--ranks", "4,8")
    words = "computing is that of 64 samples per rank, and the plan has"
    assert f"{words} 128 to 256: " in tersor.ok(*asked, "--batch", "1024").err
    assert words not in tersor.ok(*asked, "--batch-per-rank", "64").err


def test_rows_of_other_kinds_are_reported_to_be_left_out(tersor) -> None:
    with RowFile("lookups.jsonl") as file:
        for row in lookup_rows():
            file.append(row)
    both = ("plan", "--rows", "rows.jsonl", "--rows", "lookups.jsonl", "--ranks", "4,8")
    assert "6 rows of look-ups are left out" in tersor.ok(*both).err
    sweep = ("--bandwidth-sweep", "1gbit..4gbit", "--plot", "two.svg")
    assert "two.svg shows 4 ranks" in tersor.ok(*both, *sweep).err


def test_a_check_shows_every_error_and_fails_when_the_model_does(tersor) -> None:
    done = tersor.ok("plan", "--check", "rows.jsonl", "--json", "-o", "points.jsonl")
    assert len(done.json["points"]) == len(Path("points.jsonl").read_text().splitlines()) == 81
    shown = tersor.ok("plan", "--check", "rows.jsonl", "--hold-out", "batch").out
    assert "each batch from the rows of the other batches" in " ".join(shown.split())
    with RowFile("few.jsonl") as file:
        for row in ROWS:
            if row.codec == "float32" and row.exchange.batch == 256:
                file.append(row)
    assert tersor("plan", "--check", "few.jsonl").code == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan", "name result rows with --rows FILE"),
        ("plan --rows nowhere.jsonl", "there is no file"),
        ("plan --rows rows.jsonl --check rows.jsonl", "not both"),
        ("plan --rows log.jsonl", "holds no result rows; name a file that tersor bench wrote"),
        ("plan --rows rows.jsonl --ranks 1", "from 2"),
        ("plan --rows rows.jsonl --ranks many", "numbers separated by commas"),
        ("plan --rows rows.jsonl --inter fast", "as in 100gbit"),
        ("plan --rows rows.jsonl --batch 100", "--batch-per-rank"),
        ("plan --rows rows.jsonl --batch 100 --batch-per-rank 1", "not both"),
        ("plan --rows rows.jsonl --bandwidth-sweep 1gbit", "1gbit..400gbit"),
        ("plan --rows rows.jsonl --codecs lzma", "but no 'lzma'"),
        ("plan --rows rows.jsonl --input other", "no row is of 'other'"),
        ("plan --rows rows.jsonl --cluster nowhere.toml", "there is no file"),
        ("plan --rows rows.jsonl --trace rows.jsonl", "line 1 of rows.jsonl"),
        ("plan --rows rows.jsonl --trace log.jsonl --allreduce-mbytes 40", "holds the all-reduce"),
        ("plan --rows rows.jsonl --trace log.jsonl --cluster dense.toml", "holds the all-reduce"),
        ("plan --check rows.jsonl --hold-out rank", "link or batch"),
        ("plan --check rows.jsonl --ranks 4", "--ranks is for plans"),
        ("plan --check rows.jsonl --cluster nowhere.toml", "--cluster is for plans"),
        ("plan --check rows.jsonl --codecs half", "--codecs is for plans"),
        (
            "plan --check rows.jsonl --bandwidth-sweep 1gbit..2gbit",
            "--bandwidth-sweep is for plans",
        ),
        ("plan --check rows.jsonl --plot plan.svg", "--plot is for plans"),
        ("plan --check rows.jsonl --backward float32", "--backward is for plans"),
        ("plan --rows rows.jsonl --hold-out link", "--hold-out is for checks"),
        ("plan --rows rows.jsonl --bound 0.03", "for rows of codecs"),
    ],
)
def test_wrong_usage_is_one_sentence(tersor, line, words) -> None:
    assert words in tersor.refused(*line.split())


def test_the_examples_of_the_page_run(tersor) -> None:
    Path("results").symlink_to(RESULTS)
    # tests/cli/test_plan_shards.py runs those of sharded training
    page = re.sub(r"^## Sharded training$.*?^## ", "## ", PAGE, flags=re.DOTALL | re.MULTILINE)
    [first, gpus, own] = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(first.splitlines()) == 4
    own = own.replace("dumps", "--synthetic --codecs rows,group8 --peers none --rounds 1 --dim 8")
    shown = [tersor.ok(*shlex.split(line)[1:]).out for line in (first + gpus + own).splitlines()]
    # the tables of the page are those that its commands show
    *of_ranks, of_gpus = re.findall(r"^- from (\S+ on \S+ beats)", page, re.MULTILINE)
    assert of_ranks
    for cells, found in ((of_ranks[0], shown[1]), (of_ranks[-1], shown[1]), (of_gpus, shown[4])):
        assert cells in found
    Path("results").unlink()


def test_the_cluster_file_on_the_page_says_everything_it_can() -> None:
    [block] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    said = tomllib.loads(block)
    Workload.parse(said)
    assert {*said, "batch_per_rank"} == set(KEYS)


def test_the_committed_check_comes_from_committed_rows() -> None:
    rows = read_rows(RESULTS / "2026-11-embeddings-network.jsonl")
    committed = (RESULTS / "2026-11-plan-check.jsonl").read_text(encoding="utf-8").splitlines()
    made = [point.to_config() for point in check(rows).points]
    assert [json.loads(line) for line in committed] == [pytest.approx(point) for point in made], (
        "the command that makes it stands in docs/plan.md"
    )


def test_a_page_says_what_it_cannot_be_asked(tersor) -> None:
    for kind, words in (("plan-moon", "plan-sweep"), ("plan", "ranks=N")):
        with pytest.raises(SpecError, match=words):
            filled(f"<!-- {kind}: rows.jsonl -->\n<!-- end -->", tersor.folder)
