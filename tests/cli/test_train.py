from __future__ import annotations

import json

import numpy as np
import pytest
import torch

SMALL = ("--max-rows", "30", "--batch", "64", "--eval-samples", "256", "--steps", "4")


def test_a_run_reports_what_it_learned_and_sent(tersor, tmp_path) -> None:
    done = tersor.ok("train", "dlrm", "--json", *SMALL, "--run", str(tmp_path / "run")).json
    assert 0 < done["metrics"]["auc"] < 1
    assert done["exchange"]["forward"]["ratio"] > 2
    assert done["exchange"]["backward"]["ratio"] == 2.0
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert lines[-1]["kind"] == "exchange"


def test_people_see_a_table_and_the_best_auc(tersor) -> None:
    shown = tersor.ok("train", "dlrm", *SMALL, "--codec", "raw", "--backward", "none").out
    for words in ("AUC", "ratio forward", "1.00", "best AUC of any model"):
        assert words in shown


def test_a_run_goes_on_from_its_checkpoint(tersor, tmp_path) -> None:
    options = (*SMALL, "--run", str(tmp_path), "--checkpoint-every", "2", "--decay-end", "2")
    first = tersor.ok("train", "dlrm", "--json", *options).json
    again = tersor("train", "dlrm", "--json", *options, "--resume")
    assert "resumed at step 4" in again.err
    assert again.json["metrics"] == first["metrics"]
    other = tersor("train", "dlrm", *options, "--resume", "--lr", "0.5")
    assert other.code == 2
    assert "learning_rate" in other.err


def test_a_longer_run_says_how_to_keep_the_decay_it_began_with(tersor, tmp_path) -> None:
    folder = ("--run", str(tmp_path), "--checkpoint-every", "2")
    tersor.ok("train", "dlrm", "--json", *SMALL, "--steps", "10", *folder)
    longer = ("train", "dlrm", "--json", *SMALL, "--steps", "20", *folder, "--resume")
    other = tersor(*longer)
    assert other.code == 2
    assert "its bounds become final at iteration 2, and by default that follows" in other.err
    assert "--decay-end 2" in other.err
    assert "resumed at step 10" in tersor.ok(*longer, "--decay-end", "2").err
    other = tersor(*longer, "--decay-end", "2", "--bounds", "0.02,0.03,0.05")
    assert "of a run with another bounds" in other.err


def test_a_folder_that_holds_a_run_is_not_written_to_again(tersor, tmp_path) -> None:
    folder = ("--run", str(tmp_path / "run"))
    tersor.ok("train", "dlrm", "--json", *SMALL, *folder)
    log = (tmp_path / "run" / "log.jsonl").read_text()
    again = tersor("train", "dlrm", *SMALL, *folder)
    assert again.code == 2
    assert "go on with --resume, or name another folder" in again.err
    assert (tmp_path / "run" / "log.jsonl").read_text() == log


def test_looked_up_rows_are_dumped(tersor, tmp_path) -> None:
    folder = tmp_path / "dumps"
    tersor.ok(
        "train", "dlrm", "--json", *SMALL, "--dump-embeddings", str(folder), "--dump-every", "2"
    )
    dumps = sorted(folder.glob("*.npy"))
    # steps 0 and 2, and the last
    assert {path.name[:14] for path in dumps} == {
        "step-000000000",
        "step-000000002",
        "step-000000003",
    }
    assert len(dumps) == 3 * 26
    assert np.load(dumps[0]).shape == (64, 16)
    again = tersor("train", "dlrm", *SMALL, "--dump-embeddings", str(folder))
    assert again.code == 2
    assert "is not empty; dumps go to a folder of their own" in again.err
    # there is nothing to go on from
    more = ("--run", str(tmp_path / "new"), "--resume")
    assert (
        "is not empty"
        in tersor("train", "dlrm", *SMALL, *more, "--dump-embeddings", str(folder)).err
    )


def test_a_file_is_no_folder_for_dumps(tersor, tmp_path) -> None:
    (tmp_path / "dumps").write_text("mine")
    done = tersor("train", "dlrm", *SMALL, "--dump-embeddings", str(tmp_path / "dumps"))
    assert (done.code, "is a file; name a folder" in done.err) == (2, True)
    assert (tmp_path / "dumps").read_text() == "mine"


def test_the_variables_of_the_published_scripts_are_read(tersor, monkeypatch) -> None:
    monkeypatch.setenv("TIGHTEN_EB_TABLES", "0 1 2")
    monkeypatch.setenv("TIGHTEN_EB_VALUE", "0.0001")
    monkeypatch.setenv("DECAY_FUNC", "linear")
    tight = tersor.ok("train", "dlrm", "--json", *SMALL).json["exchange"]["tables"]
    monkeypatch.delenv("TIGHTEN_EB_TABLES")
    loose = tersor.ok("train", "dlrm", "--json", *SMALL, "--classes", "hand").json
    assert tight["1"][1] > 1.3 * loose["exchange"]["tables"]["1"][1]
    monkeypatch.setenv("DECAY_FUNC", "sideways")
    done = tersor("train", "dlrm", *SMALL)
    assert done.code == 2
    assert "DECAY_FUNC" in done.err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--preset", "huge"), "kaggle, terabyte, small"),
        (("--optimizer", "adam"), "sgd, adagrad"),
        (("--codec", "nope"), "nope"),
        (("--bounds", "1,2"), "three growing numbers"),
        (("--bounds", "0.3,0.2,0.1"), "three growing numbers"),
        (("--tight-tables", "a"), "table numbers"),
        (("--tight-tables", "99"), "numbered 0 to 25"),
        (("--classes", "some"), "auto or hand"),
        (("--device", "gpu"), "'cpu' or 'cuda'"),
        (("--decay", "fast"), "step, linear"),
        (("--resume",), "--run"),
        (("--bandwidth", "10"), "as in 100gbit"),
        (("--data", "nowhere.txt"), "nowhere.txt"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(tersor, options, word) -> None:
    done = tersor("train", "dlrm", *SMALL, *options)
    assert done.code == 2
    assert word in done.err
    assert done.err.count("\n") <= 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_named(tersor) -> None:
    done = tersor("train", "dlrm", *SMALL, "--device", "cuda")
    assert done.code == 2
    assert "no CUDA device here; use --device cpu" in done.err
