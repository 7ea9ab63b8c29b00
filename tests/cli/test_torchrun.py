"""The command under torchrun, as the docs show it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from torch.distributed.run import get_args_parser

from tersor.cli.app import command
from tests.arch.source_files import REPOSITORY

PAGES = sorted(
    [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")], key=lambda page: page.name
)
SMALL = ("--data", "synthetic", "--max-rows", "30", "--batch", "64", "--eval-samples", "256")


def documented() -> list[list[str]]:
    """Return the arguments of every torchrun command line in the docs, without ``torchrun``."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = re.findall(r"^torchrun (.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_docs_show_a_command_that_keeps_checkpoints() -> None:
    assert any("--run-dir" in words for words in documented())


def test_torchrun_takes_no_option_of_ours_for_its_own() -> None:
    """It looks at all words before it hands any on, and takes an abbreviation for what it means."""
    theirs = [name for action in get_args_parser()._actions for name in action.option_strings]
    train = command().commands["train"].commands["dlrm"]
    ours = {name for parameter in train.params for name in parameter.opts if name != "--run"}
    assert ours >= {"--run-dir", "--resume"}
    assert {mine: [name for name in theirs if name.startswith(mine)] for mine in ours} == {
        mine: [] for mine in ours
    }


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_a_documented_command_runs(words, tmp_path) -> None:
    where = words.index("--nproc-per-node") + 1
    few = ["--standalone", *words[:where], "2", *words[where + 1 :]]
    # of an option that is given twice, the last counts
    tiny = (*SMALL, "--device", "cpu", "--steps", "4", "--checkpoint-every", "2", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *few, *tiny, "--run-dir", "run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)["exchange"]
    assert sent["forward"]["ratio"] > 1
    # of all ranks, each of which owns half of the tables
    assert set(map(int, sent["tables"])) == set(range(26))
    assert sent["forward"]["original_nbytes"] == 4 * 64 * 26 * 16 * 4
    last = (tmp_path / "run/log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["tables"] == sent["tables"]
    assert (tmp_path / "run/checkpoints/step-000000004/rank-1.tsr").exists()
