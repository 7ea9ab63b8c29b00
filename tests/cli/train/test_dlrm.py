from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tersor.bench.embeddings.planning.trace import computing_s
from tersor.errors import SpecError
from tersor.workloads.dlrm import DlrmRun
from tersor.workloads.training import run_folder

SMALL = ("--max-rows", "30", "--batch", "64", "--eval-samples", "256", "--steps", "4")


def test_a_run_reports_what_it_learned_and_sent(tersor, tmp_path) -> None:
    done = tersor.ok("train", "dlrm", "--json", *SMALL, "--run-dir", str(tmp_path / "run")).json
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
    options = (*SMALL, "--run-dir", str(tmp_path), "--checkpoint-every", "2", "--decay-end", "2")
    first = tersor.ok("train", "dlrm", "--json", *options).json
    again = tersor("train", "dlrm", "--json", *options, "--resume")
    assert "resumed at step 4" in again.err
    assert again.json["metrics"] == first["metrics"]
    other = tersor("train", "dlrm", *options, "--resume", "--lr", "0.5")
    assert other.code == 2
    assert "learning_rate" in other.err


def test_the_first_name_of_the_run_folder_still_works(tersor, tmp_path) -> None:
    tersor.ok("train", "dlrm", "--json", *SMALL, "--run", "old")
    first = (tmp_path / "old/log.jsonl").read_text().splitlines()[0]
    assert "--run-dir old" in json.loads(first)["command"]


def test_one_bound_is_that_of_all_classes(tersor, tmp_path) -> None:
    one, three = ("0.001", "0.001,0.001,0.001")
    sent = [
        volumes(tersor.ok("train", "dlrm", "--json", *SMALL, "--bounds", bounds).json)
        for bounds in (one, three)
    ]
    assert sent[0] == sent[1]


def test_a_refused_log_leaves_nothing_behind(tersor, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("no click log\n" * 3)
    words = tersor.refused("train", "dlrm", *SMALL, "--data", "notes.txt", code=1)
    assert "notes.txt" in words
    assert "notes.txt, line 1: 1 fields" in words
    assert "; name a click log as docs/data.md describes, or 'synthetic'" in words
    assert "fresh copy" not in words


def test_people_see_the_loss_while_it_trains(tersor) -> None:
    run = ("train", "dlrm", *SMALL, "--log-every", "2", "--eval-every", "2")
    shown = tersor.ok(*run).err
    for words in ("step 2 of 4: loss 0.", "step 4 of 4: loss 0.", "step 2 of 4: auc 0."):
        assert words in shown
    assert "ms per step" in shown
    assert "loss" not in tersor.ok(*run, "--json").err


def test_a_mistyped_folder_is_not_resumed(tersor, tmp_path) -> None:
    run = ("train", "dlrm", "--json", *SMALL, "--resume", "--run-dir")
    words = tersor.refused(*run, "mistyped/run")
    assert "there is no folder mistyped to resume a run in; check its name, or start" in words
    assert not (tmp_path / "mistyped").exists()


def test_one_command_starts_and_restarts_a_run(tersor) -> None:
    run = ("train", "dlrm", "--json", *SMALL, "--resume", "--run-dir", "new")
    # as after a run that was killed before it made its folder
    assert "no checkpoint yet; starting anew" in tersor.ok(*run).err
    assert "no checkpoint yet; starting anew" in tersor.ok(*run).err


def volumes(done: Any) -> Any:
    """Return what a training counted, without its times."""
    counted = done["exchange"]
    for direction in ("forward", "backward"):
        del counted[direction]["seconds"]
    return counted


def test_a_resumed_run_reports_what_the_whole_of_it_sent(tersor, tmp_path) -> None:
    run = ("train", "dlrm", "--json", *SMALL, "--decay-end", "2", "--checkpoint-every", "2")
    whole = volumes(tersor.ok(*run, "--steps", "6", "--run-dir", "whole").json)
    tersor.ok(*run, "--run-dir", "part")
    longer = (*run, "--steps", "6", "--run-dir", "part", "--resume")
    assert volumes(tersor.ok(*longer).json) == whole
    log = (tmp_path / "part/log.jsonl").read_text()
    again = tersor.ok(*longer)
    assert "resumed at step 6; nothing is left to train" in again.err
    assert volumes(again.json) == whole
    assert (tmp_path / "part/log.jsonl").read_text() == log
    said = tersor.ok("report", "part").out
    assert f"A training of 6 steps, AUC {again.json['metrics']['auc']:.4f}" in said
    assert f"forward ratio {whole['forward']['ratio']:.1f}." in said


def test_a_run_is_not_cut_short_by_resuming_it(tersor) -> None:
    run = ("train", "dlrm", *SMALL, "--run-dir", "run", "--checkpoint-every", "2")
    tersor.ok(*run)
    said = tersor.refused(*run, "--steps", "3", "--resume")
    assert "is at step 4, past --steps 3; give --steps 4 or more, or another --run-dir" in said


def test_a_checkpoint_of_an_earlier_tersor_tells_which_steps_are_counted(tersor, tmp_path) -> None:
    folder = ("--run-dir", "run", "--checkpoint-every", "2")
    run = ("train", "dlrm", *SMALL, "--decay-end", "2", *folder)
    tersor.ok(*run, "--log-every", "2")
    for file in tmp_path.glob("run/checkpoints/*/rank-0.json"):
        file.unlink()
    words = "does not know what its first 4 steps sent; bytes, ratios and times are of later ones"
    again = tersor.ok(*run, "--resume")
    assert words in again.err
    assert "ratio forward" not in again.out
    longer = (*run, "--resume", "--steps", "6", "--log-every", "2")
    assert words in tersor.ok(*longer).err
    # the next checkpoint remembers it
    again = tersor.ok(*longer)
    assert words in again.err
    assert "ratio forward" in again.out
    assert "in its last 2 steps." in tersor.ok("report", "run").out
    with pytest.raises(SpecError, match="counts the exchanges of 2 of its 6 steps"):
        computing_s("run/log.jsonl")


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let trainings be interrupted when they come to a step."""
    taken = DlrmRun.step

    def stopped(run: DlrmRun, batch: Any = None) -> float:
        if run.step_number == step:
            raise KeyboardInterrupt
        return taken(run, batch)

    monkeypatch.setattr(DlrmRun, "step", stopped)


def test_an_interrupted_run_says_where_it_goes_on(tersor, monkeypatch) -> None:
    run = ("train", "dlrm", "--json", *SMALL, "--steps", "6", "--log-every", "1")
    folder = ("--run-dir", "run", "--checkpoint-every", "2")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 1)
        done = tersor(*run)
        assert (done.code, "interrupted; nothing half-written is left" in done.err) == (130, True)
        done = tersor(*run, *folder)
        assert "interrupted; run has no checkpoint yet; --resume starts anew there" in done.err
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        done = tersor(*run, *folder, "--resume")
        assert done.code == 130
        assert "interrupted; the checkpoint of step 4 is in run; go on with --resume" in done.err
    whole, again = tersor.ok(*run), tersor.ok(*run, *folder, "--resume")
    assert volumes(again.json) == volumes(whole.json)
    # step 1 was taken three times and step 5 twice, and each counts once
    assert computing_s("run/log.jsonl") > 0
    assert "A training of 6 steps" in tersor.ok("report", "run").out


def test_a_run_interrupted_before_it_wrote_anything_leaves_no_folder_to_resume(
    tersor, tmp_path, monkeypatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DlrmRun, "__init__", stopped)
    done = tersor("train", "dlrm", *SMALL, "--run-dir", "run", "--checkpoint-every", "2")
    assert done.code == 130
    assert "interrupted; nothing half-written is left" in done.err
    assert not (tmp_path / "run").exists()


def seconds_of(steps: int, counted: int, seconds: float) -> dict[str, Any]:
    """Return the line that closes a log."""
    each = {"seconds": {"payload": seconds / 2}}
    return {
        "kind": "exchange",
        "step": steps,
        "num_exchanges": counted,
        "forward": each,
        "backward": each,
    }


def write_log(path: Path, *lines: dict[str, Any] | tuple[str, int, float]) -> Path:
    """Write a log; (kind, step, seconds) stands for a line."""
    written = [
        line
        if isinstance(line, dict)
        else {"kind": line[0], "step": line[1], "step_s": line[2], "loss": line[2]}
        for line in lines
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in written))
    return path


def test_steps_that_were_taken_again_count_as_they_were_last(tmp_path) -> None:
    log = write_log(
        tmp_path / "log.jsonl",
        ("run", 0, 0), ("train", 20, 1.0), ("train", 40, 2.0), ("train", 60, 99.0),
        # killed, and gone on from the checkpoint of step 40; then finished, and made longer
        ("run", 40, 0), ("train", 60, 4.0), seconds_of(60, 60, 6.0),
        ("run", 60, 0), ("train", 80, 8.0), seconds_of(80, 80, 10.0),
    )  # fmt: skip
    assert computing_s(log) == pytest.approx((20 * (1 + 2 + 4 + 8) - 10) / 80)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        # the line of step 50 is of ten steps after the checkpoint of step 40, and not of fifty
        (
            [("run", 0, 0), ("train", 50, 1.0), ("run", 40, 0), ("train", 50, 1.0),
             seconds_of(50, 50, 1.0)],
            "of its steps 1 to 40; train anew with --log-every N, N a divisor of --steps and",
        ),
        ([("run", 0, 0), ("train", 10, 1.0), seconds_of(12, 12, 1.0)], "of its steps 11 to 12;"),
        ([("run", 0, 0), ("train", 10, 1.0), seconds_of(11, 11, 1.0)], "of its step 11;"),
        ([("run", 0, 0), seconds_of(4, 4, 1.0)], "of its steps 1 to 4;"),
        (
            [("run", 0, 0), ("train", 10, 1.0), seconds_of(10, 10, 1.0), ("run", 10, 0),
             ("train", 20, 1.0)],
            "has not ended; go on with it by --resume",
        ),
        ([("run", 0, 0), ("train", 10, 1.0), ("run", 5, 0)], "has not ended"),
        ([("run", 0, 0), ("train", 20, 1.0), seconds_of(10, 10, 1.0)], "step 10 after 20"),
    ],
)  # fmt: skip
def test_a_log_that_tells_no_whole_training_is_refused_for_what_it_lacks(
    tmp_path, lines, words
) -> None:
    with pytest.raises(SpecError, match=words):
        computing_s(write_log(tmp_path / "log.jsonl", *lines))


def test_a_report_shows_each_step_of_a_resumed_run_once(tersor, tmp_path) -> None:
    origin = {"command": "tersor train dlrm", "versions": {}, "machine": {}, "git_commit": ""}
    runs = [{"kind": "run", "step": step, **origin} for step in (0, 20)]
    begun, killed = [runs[0], ("train", 20, 0.6)], [("train", 40, 7.0), ("train", 90, 8.0)]
    ended = [runs[1], ("train", 40, 0.5), ("train", 60, 0.4)]
    figures = []
    for lines in ([*begun, *killed, *ended], [*begun, *ended]):
        write_log(tmp_path / "log.jsonl", *lines)
        said = tersor.ok("report", "log.jsonl", "--figures", "figures", "--force").out
        assert "A training of 60 steps." in said
        figures += [file.read_text() for file in tmp_path.glob("figures/*loss*.svg")]
    assert len(figures) == 2
    assert figures[0] == figures[1]


def test_a_longer_run_says_how_to_keep_the_decay_it_began_with(tersor, tmp_path) -> None:
    folder = ("--run-dir", str(tmp_path), "--checkpoint-every", "2")
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
    folder = ("--run-dir", str(tmp_path / "run"))
    tersor.ok("train", "dlrm", "--json", *SMALL, *folder)
    log = (tmp_path / "run" / "log.jsonl").read_text()
    again = tersor("train", "dlrm", *SMALL, *folder)
    assert again.code == 2
    assert "go on with --resume, or name another folder" in again.err
    assert (tmp_path / "run" / "log.jsonl").read_text() == log


def test_a_run_that_ends_while_the_next_waits_for_its_folder_is_kept(
    tersor, tmp_path, monkeypatch
) -> None:
    first = ExitStack()

    def end_first(_: float) -> None:
        (tmp_path / "log.jsonl").write_text("first\n")
        first.close()

    (tmp_path / "checkpoints/step-000000001").mkdir(parents=True)
    with first:
        first.enter_context(run_folder._locked(tmp_path, 0, "first"))
        monkeypatch.setattr(run_folder.time, "sleep", end_first)
        second = tersor("train", "dlrm", *SMALL, "--run-dir", str(tmp_path))
    assert second.code == 2
    assert "holds a run; go on with --resume" in second.err
    assert (tmp_path / "log.jsonl").read_text() == "first\n"
    assert (tmp_path / "checkpoints/step-000000001").exists()


def test_checkpoints_without_a_log_are_a_run_too(tersor, tmp_path) -> None:
    run = ("train", "dlrm", *SMALL, "--run-dir", "run", "--checkpoint-every", "2")
    tersor.ok(*run)
    (tmp_path / "run/log.jsonl").unlink()
    assert "run holds a run; go on with --resume" in tersor.refused(*run)


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
    more = ("--run-dir", str(tmp_path / "new"), "--resume")
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
        (("--bounds", "1,2"), "one number for all classes, or three growing ones"),
        (("--bounds", "0"), "one number for all classes, or three growing ones"),
        (("--bounds", "0.3,0.2,0.1"), "three growing ones"),
        (("--tight-tables", "a"), "table numbers"),
        (("--tight-tables", "99"), "numbered 0 to 25"),
        (("--classes", "some"), "auto or hand"),
        (("--device", "gpu"), "'cpu' or 'cuda'"),
        (("--decay", "fast"), "step, linear"),
        (("--resume",), "--run-dir"),
        (("--steps", "0"), "--steps must be at least 1, not 0"),
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
