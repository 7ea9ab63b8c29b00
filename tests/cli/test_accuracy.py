"""``tersor bench accuracy dlrm`` says of each metric what the pairs show; the trainings are made up."""

from __future__ import annotations

import pytest

from tersor.bench.embeddings import accuracy
from tersor.sites.embeddings import Volume
from tersor.workloads.dlrm.comparison import DlrmOutcome
from tersor.workloads.training.judgement import Pair

DIRECTION = (Volume(100, 10), {"encode": 1.0})


def outcome(name: str, auc: float, logloss: float) -> DlrmOutcome:
    metrics = {"auc": auc, "logloss": logloss}
    return DlrmOutcome(name, metrics, [], 4, {"forward": DIRECTION, "backward": DIRECTION})


@pytest.fixture
def pairs(monkeypatch):
    found = [
        Pair(
            seed,
            outcome("uncompressed", 0.7, 0.5),
            outcome("compressed", 0.6 + noise, 0.5 + noise - 0.001),
        )
        for seed, noise in enumerate((0.001, 0.002, 0.0))
    ]
    monkeypatch.setattr(accuracy, "run_accuracy", lambda *_, **__: iter(found))
    return found


OPTIONS = ("bench", "accuracy", "dlrm", "--samples", "512", "--max-rows", "30", "--batch", "64")


def test_each_metric_is_judged_by_its_interval(tersor, pairs) -> None:
    shown = " ".join(tersor.ok(*OPTIONS).out.split())
    assert "auc changes by -0.09900, 95 % interval ±0.00248: worse" in shown
    assert "logloss changes by +0.00000, 95 % interval ±0.00248: no difference; 3 pairs." in shown
    found = tersor.ok(*OPTIONS, "--json").json
    assert (found["auc_change"]["verdict"], found["auc_change"]["holds_zero"]) == ("worse", False)
    assert found["logloss_change"]["verdict"] == "no difference"
    assert [one["seed"] for one in found["pairs"]] == [0, 1, 2]


GPT = ("bench", "accuracy", "gpt")
TINY = ("--context", "8", "--batch", "4", "--steps", "2", "--seeds", "1", "--evals", "1")


def test_a_gpt_is_trained_with_the_schemes_asked_for(tersor, tmp_path) -> None:
    (tmp_path / "tale.txt").write_text("once upon a time\n" * 50)
    rows = str(tmp_path / "rows.jsonl")
    where = ("--data", str(tmp_path / "tale.txt"), "--transport", "memory", "-o", rows)
    options = (*GPT, *TINY, "--schemes", "both", *where)
    shown = tersor.ok(*options).out
    assert "4 ranks, 2 per node, 2 steps of 4" in " ".join(shown.split())
    found = tersor.ok(*options, "--resume", "--json").json
    assert [row["codec"] for row in found["rows"]] == ["exact", "both"]
    assert found["rows"][0]["command"].startswith("tersor bench accuracy gpt --data ")


def test_a_smoke_run_is_tiny_and_judges_nothing(tersor) -> None:
    done = tersor.ok(*GPT, "--smoke", "--transport", "memory", "--json")
    assert [row["codec"] for row in done.json["rows"]] == ["exact", "both"]
    assert {
        (row["training"]["num_ranks"], row["training"]["steps"]) for row in done.json["rows"]
    } == {(2, 4)}
    assert done.json["goals"] == []
    assert "--smoke measures too little" in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--transport", "nccl"), "--transport must be gloo or memory"),
        (("--ranks", "1"), "--ranks must be at least 2"),
        (("--schemes", "odd"), "schemes are exact"),
        (("--preset", "odd"), "--preset must be one of"),
    ],
)
def test_what_cannot_be_trained_is_refused(tersor, options, words) -> None:
    assert words in tersor.refused(*GPT, *TINY, *options)
