"""The command under torchrun, as the docs show it."""

from __future__ import annotations

import json
import lzma
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from tersor.cli.app import command
from tests.arch.source_files import REPOSITORY

PAGES = sorted(
    [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")], key=lambda page: page.name
)
SMALL = {
    "dlrm": ("--data", "synthetic", "--max-rows", "30", "--batch", "64", "--eval-samples", "256"),
    "gpt": (
        "--tokenizer", "bytes", "--preset", "2M", "--context", "16", "--batch", "4",
        "--accumulation", "2", "--eval-samples", "8",
    ),
}  # fmt: skip


def documented(training: str) -> list[list[str]]:
    """Return the arguments of every torchrun command line of a training, without ``torchrun``."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = re.findall(rf"^torchrun (.* train {training} .*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("training", SMALL)
def test_the_docs_show_a_command_that_keeps_checkpoints(training) -> None:
    assert any("--run-dir" in words for words in documented(training))


@pytest.mark.parametrize("training", SMALL)
def test_torchrun_takes_no_option_of_ours_for_its_own(training) -> None:
    """It looks at all words before it hands any on, and takes an abbreviation for what it means."""
    theirs = [name for action in get_args_parser()._actions for name in action.option_strings]
    train = command().commands["train"].commands[training]
    ours = {name for parameter in train.params for name in parameter.opts if name != "--run"}
    assert ours >= {"--run-dir", "--resume"}
    assert {mine: [name for name in theirs if name.startswith(mine)] for mine in ours} == {
        mine: [] for mine in ours
    }


def run_on_two_ranks(words: list[str], training: str, folder: Path) -> Any:
    """Run a command line of the docs, made small; return its result."""
    where = words.index("--nproc-per-node") + 1
    few = ["--standalone", *words[:where], "2", *words[where + 1 :]]
    # of an option that is given twice, the last counts
    tiny = (
        *SMALL[training],
        "--device",
        "cpu",
        "--steps",
        "4",
        "--checkpoint-every",
        "2",
        "--json",
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *few, *tiny, "--run-dir", "run"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "run/checkpoints/step-000000004/rank-1.tsr").exists()
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", documented("gpt"), ids=" ".join)
def test_a_documented_training_of_a_gpt_runs(words, tmp_path) -> None:
    for name in ("train.txt.xz", "valid.txt.xz"):
        (tmp_path / name).write_bytes(lzma.compress(b"once upon a time\n" * 100))
    done = run_on_two_ranks(words, "gpt", tmp_path)
    assert 0 < done["metrics"]["loss"] < 6
    assert ("activations" in done["end"]) == ("--activation-step" in words)
    if "--activation-step" in words:
        saved = done["end"]["activations"]
        assert 4 * saved["held_nbytes"] < saved["original_nbytes"]
    first = (tmp_path / "run/log.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["ranks"] == 2


@pytest.mark.parametrize("words", documented("dlrm"), ids=" ".join)
def test_a_documented_training_of_dlrm_runs(words, tmp_path) -> None:
    sent = run_on_two_ranks(words, "dlrm", tmp_path)["exchange"]
    assert sent["forward"]["ratio"] > 1
    # of all ranks, each of which owns half of the tables
    assert set(map(int, sent["tables"])) == set(range(26))
    assert sent["forward"]["original_nbytes"] == 4 * 64 * 26 * 16 * 4
    last = (tmp_path / "run/log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["tables"] == sent["tables"]
