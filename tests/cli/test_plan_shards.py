"""``tersor plan`` knows rows of sharded trainings from others, and what may be asked of them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tersor.bench.core.row_file import RowFile
from tersor.bench.page import filled
from tersor.bench.shards.planning.description import KEYS
from tersor.workloads.models.gpt import PRESETS
from tests.arch.source_files import REPOSITORY
from tests.bench.embeddings.planning.test_planning import ROWS as EXCHANGES
from tests.bench.shards.made_trainings import training_rows
from tests.bench.shards.planning.made import ROWS, made_row, made_rows

PAGE = (REPOSITORY / "docs" / "plan.md").read_text(encoding="utf-8")
PLAN = ("plan", "--rows", "shards.jsonl", "--ranks-per-node", "8")
NETWORK = "results/2026-11-shards-network.jsonl"


def write(path: str, rows) -> None:
    with RowFile(path) as file:
        for row in rows:
            file.append(row)


@pytest.fixture(autouse=True)
def _rows(tersor) -> None:
    write("shards.jsonl", ROWS)


def test_a_plan_goes_to_4096_ranks_and_is_written_as_json_lines(tersor) -> None:
    done = tersor.ok(*PLAN, "--inter", "10gbit", "--output", "plan.jsonl", "--json")
    lines = [json.loads(line) for line in Path("plan.jsonl").read_text().splitlines()]
    assert lines == done.json["plan"]
    assert {line["num_ranks"] for line in lines} == {2, 8, 64, 512, 4096}
    assert {line["site"] for line in lines} == {"shards"}
    assert "27 rows of gpt-2M: 4 ranks, 2 per node, links of 100mbit, 300mbit, 1gbit" in done.err
    best = [line for line in lines if line["is_best"]]
    assert [line["num_ranks"] for line in best] == [2, 8, 64, 512, 4096]
    assert all("use fsdp-" in line["reason"] for line in best)


def test_a_published_model_on_another_backend_is_planned(tersor) -> None:
    asked = ("--parameters", "6.7B", "--backend", "nccl", "--ranks", "512", "--json")
    refused = tersor.refused(*PLAN, *asked)
    assert (
        "give a rank's computing per step with --compute-ms, or 0 to compare exchanges alone"
        in refused
    )
    done = tersor.ok(*PLAN, *asked, "--compute-ms", "900")
    assert "coding (--coding-gbps) is of the machine that was measured" in done.err
    whole = PRESETS["6.7B"].shape.num_parameters
    assert {line["num_weights"] for line in done.json["plan"]} == {whole}
    described = tersor.ok(*PLAN, *asked, "--compute-ms", "900", "--coding-gbps", "1000")
    assert "of the machine" not in described.err
    assert {line["compute_s"] for line in described.json["plan"]} == {0.9}


def test_the_best_by_bandwidth_is_shown_and_drawn(tersor) -> None:
    asked = ("--ranks", "64", "--backend", "nccl", "--compute-ms", "20")
    sweep = ("--bandwidth-sweep", "1gbit..400gbit", "--plot", "plan.svg")
    shown = " ".join(tersor.ok(*PLAN, *asked, *sweep).out.split())
    assert "on fsdp-bf16 beats fsdp-4-bit: it codes" in shown
    assert Path("plan.svg").read_text().startswith("<svg")


def test_replicas_are_planned_where_they_are_asked_for(tersor) -> None:
    done = tersor.ok(*PLAN, "--wrapper", "ddp", "--ranks", "8", "--json")
    assert {line["codec"] for line in done.json["plan"]} == {
        "ddp-fp32", "ddp-bf16", "ddp-powersgd", "ddp-4-bit",
    }  # fmt: skip


def test_a_cluster_file_may_say_all_that_options_can(tersor) -> None:
    Path("cluster.toml").write_text('parameters = "1.3B"\nbackend = "nccl"\ncompute_ms = 3.0\n')
    asked = (
        "plan",
        "--rows",
        "shards.jsonl",
        "--cluster",
        "cluster.toml",
        "--ranks",
        "8",
        "--json",
    )
    [line, *_] = tersor.ok(*asked).json["plan"]
    assert (line["backend"], line["compute_s"]) == ("nccl", pytest.approx(3e-3))
    [line, *_] = tersor.ok(*asked, "--backend", "gloo").json["plan"]
    assert line["backend"] == "gloo"
    for key in KEYS:
        assert f"--{key.replace('_', '-')}" in (REPOSITORY / "docs" / "cli.md").read_text()


def test_a_check_shows_every_error_and_fails_when_the_model_does(tersor) -> None:
    done = tersor.ok("plan", "--check", "shards.jsonl", "--json", "-o", "points.jsonl")
    assert len(done.json["points"]) == len(Path("points.jsonl").read_text().splitlines()) == 54
    shown = " ".join(tersor.ok("plan", "--check", "shards.jsonl").out.split())
    assert "27 of 27 exchanges and 27 of 27 steps are predicted within 20%" in shown
    tersor.ok("report", "points.jsonl", "--output", "page.html")
    # measured again, with a time that is twice as long
    write("wrong.jsonl", [*ROWS, made_row("fsdp-4-bit", "1gbit", noise=2.0)])
    shown = " ".join(tersor.ok("plan", "--check", "wrong.jsonl").out.split())
    assert "26 of 27 exchanges" in shown
    assert "-50% (fsdp-4-bit, exchange, 1gbit, batch 4)" in shown
    factors = {"100mbit": 1.0, "300mbit": 3.0, "1gbit": 9.0}
    write("bad.jsonl", [x for link, f in factors.items() for x in made_rows((link,), noise=f)])
    assert tersor("plan", "--check", "bad.jsonl").code == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--batch 4", "--batch is for rows of embeddings; these are of shards"),
        ("--batch-per-rank 4", "--batch-per-rank is for rows of embeddings"),
        ("--sample-nbytes 4", "--sample-nbytes is for rows of embeddings"),
        ("--trace log.jsonl", "--trace is for rows of embeddings"),
        ("--allreduce-mbytes 4", "--allreduce-mbytes is for rows of embeddings"),
        ("--setting words", "--setting is for rows of embeddings"),
        ("--bound 0.1", "--bound is for rows of embeddings"),
        ("--backward float32", "--backward is for rows of embeddings"),
        ("--parameters huge", "or a number of weights such as 3B, not 'huge'"),
        ("--backend mpi", "backend is gloo or nccl, not 'mpi'"),
        ("--wrapper zero", "the rows are of fsdp and ddp, not of 'zero'"),
        ("--codecs ddp-4-bit", "but no 'ddp-4-bit'"),
        ("--input gpt-10M", "these are of gpt-2M"),
        ("--ranks 12", "12 ranks do not fill nodes of 8"),
        ("--rows exchanges.jsonl", "these rows are of embeddings and of shards"),
        ("--hold-out link", "--hold-out is for checks"),
    ],
)
def test_wrong_usage_is_one_sentence(tersor, line, words) -> None:
    write("exchanges.jsonl", EXCHANGES)
    assert words in tersor.refused(*PLAN, *line.split())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--parameters", "1.3B"), ("--backend", "nccl"), ("--coding-gbps", "9"),
        ("--wrapper", "fsdp"),
    ],
)  # fmt: skip
def test_what_is_for_shards_is_refused_with_other_rows(tersor, option, value) -> None:
    write("exchanges.jsonl", EXCHANGES)
    words = tersor.refused("plan", "--rows", "exchanges.jsonl", option, value)
    assert f"{option} is for rows of shards; these are of embeddings" in words


def test_checks_refuse_what_they_cannot_hold_out(tersor) -> None:
    words = tersor.refused("plan", "--check", "shards.jsonl", "--hold-out", "batch")
    assert "a link is held out, not 'batch'" in words
    write("one.jsonl", made_rows(("1gbit",)))
    assert "at least two values of link" in tersor.refused("plan", "--check", "one.jsonl")


def test_the_commands_and_blocks_of_the_page_work_with_such_rows(tersor) -> None:
    section = PAGE.split("\n## Sharded training\n")[1].split("\n## ")[0]
    Path("results").mkdir()
    write(NETWORK, ROWS)
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith("tersor plan")
    ]
    assert len(commands) == 4
    for line in commands:
        tersor.ok(*shlex.split(line)[1:])
    made = filled(section, tersor.folder)
    assert made.count("<!-- plan") == section.count("<!-- plan") >= 3
    assert "Not measured yet" not in made
    assert "27 of 27 exchanges" in made
    assert "| 4,096 | fsdp-4-bit |" in made


def test_trainings_in_the_same_file_are_no_exchanges(tersor) -> None:
    write("both.jsonl", [*ROWS, *training_rows()])
    alone, mixed = (
        tersor.ok("plan", "--rows", name, "--ranks", "4", "--json").json["plan"]
        for name in ("shards.jsonl", "both.jsonl")
    )
    assert mixed == alone
    write("trainings.jsonl", training_rows())
    assert "no result rows to plan from" in tersor.refused("plan", "--rows", "trainings.jsonl")
