from __future__ import annotations

import json

import pytest

from tersor.workloads.training import activations as training_activations
from tests.workloads.old_pickles import write_planetoid

SMALL = ("--nodes", "300", "--steps", "4", "--log-every", "2")


@pytest.mark.parametrize("form", ["csr", "matmul", "linear"])
def test_a_run_reports_what_it_learned(tersor, tmp_path, form) -> None:
    done = tersor.ok("train", "gcn", "--json", *SMALL, "--form", form, "--run-dir", "run").json
    assert 0 <= done["metrics"]["accuracy"] <= 1
    assert done["metrics"]["num_samples"] == 150
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", "train", "train", "eval", "end"]
    assert lines[0]["config"]["form"] == form


def test_a_run_goes_on_from_its_checkpoint(tersor) -> None:
    drawn = ("--model", "sage", "--fanouts", "3,2", "--batch", "10", "--hidden", "8")
    options = ("train", "gcn", *SMALL, *drawn, "--run-dir", "run", "--checkpoint-every", "2")
    first = tersor.ok(*options, "--json").json
    again = tersor.ok(*options, "--json", "--resume")
    assert "resumed at step 4; nothing is left to train" in again.err
    assert again.json == first
    assert "another form" in tersor.refused(*options, "--resume", "--form", "matmul")
    assert "resumed at step 4" in tersor.ok(*options, "--resume", "--steps", "6").err


def test_planetoid_files_are_trained_on(tersor, tmp_path) -> None:
    write_planetoid(tmp_path)
    done = tersor.ok("train", "gcn", "--data", str(tmp_path / "ind.tiny.graph"), "--steps", "2")
    assert "gcn on tiny" in done.out


def test_a_study_tells_bytes_and_times(tersor) -> None:
    done = tersor.ok("train", "gcn", "--study", "--nodes", "300", "--json").json
    assert [cost["form"] for cost in done["forms"]] == ["csr", "matmul", "linear"]
    assert done["forms"][1]["matrix_nbytes"] == 4 * 300**2
    assert all(cost["product_ms"] > 0 for cost in done["forms"])
    shown = tersor.ok("train", "gcn", "--study", "--nodes", "300").out
    assert "dense forms stop" in shown


def test_a_balance_is_shown_and_logged(tersor, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training_activations, "_FIRST_BALANCE", 2)
    options = ("--activation-step", "1", "--activation-balance", "tensor", "--run-dir", "run")
    shown = tersor.ok("train", "gcn", *SMALL, "--steps", "3", *options).err
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    (balance,) = (line for line in lines if line["kind"] == "balance")
    assert balance["step"] == 2
    assert balance["num_parts"] > 1
    assert 0.5 <= balance["least_factor"] <= balance["largest_factor"] <= 2
    found = f"step 2 of 3: balanced {balance['num_parts']} parts, factors {balance['least_factor']:.4g} to "
    assert found in shown
    assert f"score {balance['score']:.4f}" in shown


@pytest.mark.parametrize("options", [("--activation-step", "1"), ("--steps", "9")])
def test_a_study_refuses_options_of_trainings(tersor, options) -> None:
    words = tersor.refused("train", "gcn", "--study", "--nodes", "300", *options)
    assert f"{options[0]} is for trainings" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "gat"), "model must be one of gcn, sage, not 'gat'"),
        (("--form", "coo"), "form must be one of csr, matmul, linear, not 'coo'"),
        (("--fanouts", "3,3"), "drawn neighbours are GraphSAGE's"),
        (("--hidden", "a"), "--hidden takes numbers separated by commas, not 'a'"),
        (("--steps", "0"), "--steps must be at least 1, not 0"),
        (("--batch", "3"), "80 nodes to train on, which is the batch of a whole graph"),
        (("--nodes", "10"), "20 nodes and a feature for each"),
        (("--data", "nowhere"), "only the synthetic graph has a number of nodes"),
        (("--eval-samples", "0"), "an evaluation needs at least one sample, not 0"),
    ],
)
def test_a_mistake_is_one_sentence(tersor, options, words) -> None:
    assert words in tersor.refused("train", "gcn", *SMALL, *options)


def test_a_pickle_of_anything_else_is_refused(tersor, tmp_path) -> None:
    write_planetoid(tmp_path)
    (tmp_path / "ind.tiny.graph").write_bytes(b"\x80\x02cos\nsystem\nU\x04true\x85R.")
    words = tersor.refused("train", "gcn", "--data", str(tmp_path / "ind.tiny.graph"))
    assert "names os.system, which is part of no array; it is not read" in words
