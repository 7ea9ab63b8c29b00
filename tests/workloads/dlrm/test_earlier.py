"""A checkpoint that was written before trainings shared their parts goes on as it would have then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tersor.api import load
from tersor.sites.embeddings import AdaptiveBounds, Decay
from tersor.workloads.data.synthetic import SyntheticClicks
from tersor.workloads.dlrm import DlrmConfig, DlrmRun
from tersor.workloads.models.dlrm import DlrmShape
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tests.checks import assert_bits_equal

NAME = "step-000000003"
EARLIER = Path(__file__).parent / "earlier" / NAME
SOURCE = SyntheticClicks.scaled(8, num_train=512, num_test=64)
CONFIG = DlrmConfig(
    shape=DlrmShape(SOURCE.num_rows, 4, (4,), (2,)), batch=16, steps=6, learning_rate=0.1, seed=5,
    optimizer="adagrad", codec="rows", backward="group8",
    bounds=AdaptiveBounds(tight={3}, decay=Decay("linear", 2.0, 6)),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(EARLIER, tmp_path / "earlier" / NAME)
    return tmp_path / "earlier"


def test_an_earlier_checkpoint_is_taken_up_bit_for_bit(folder):
    run = DlrmRun(CONFIG, SOURCE)
    assert resume(run, folder) == 3
    saved = load(EARLIER / "rank-0.tsr")
    del saved["save_id"]
    assert list(run.state()) == list(saved)
    for name, value in saved.items():
        assert_bits_equal(run.state()[name], value)
    assert run.run_id == json.loads((EARLIER / "complete.json").read_text())["run_id"]
    assert run.counters() == json.loads((EARLIER / "rank-0.json").read_text())["stats"]


def test_a_checkpoint_is_laid_out_as_earlier_ones(folder, tmp_path):
    run = DlrmRun(CONFIG, SOURCE)
    resume(run, folder)
    written = save_checkpoint(run, tmp_path / "now")
    assert written.name == NAME
    assert {file.name for file in written.iterdir()} == {file.name for file in EARLIER.iterdir()}
    now, then = (load(path / "rank-0.tsr") for path in (written, EARLIER))
    assert {name: (x.dtype, x.shape) for name, x in now.items()} == {
        name: (x.dtype, x.shape) for name, x in then.items()
    }
    for file in ("complete.json", "rank-0.json"):
        ours, theirs = (json.loads((path / file).read_text()) for path in (written, EARLIER))
        assert len(ours.pop("save_id")) == len(theirs.pop("save_id")) == 16
        assert ours == theirs
    again = DlrmRun(CONFIG, SOURCE)
    assert resume(again, tmp_path / "now") == 3
    for _ in range(3):
        assert run.step() == again.step()
