"""One run at a time in a folder, the same folder for all ranks, the same checkpoint for all ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tersor.api import load, save
from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.dlrm import DlrmRun
from tersor.workloads.ranks import Ranks
from tersor.workloads.training import run_folder
from tersor.workloads.training.checkpoint import (
    complete_checkpoints,
    last_step,
    remove_leftovers,
    resume,
    save_checkpoint,
)
from tersor.workloads.training.run_folder import locked_run_folder
from tests.arch.source_files import REPOSITORY
from tests.sites.ranks import Failure, returned, run_ranks
from tests.workloads.dlrm.test_run import SOURCE, config

ALONE = Ranks(0, 1)
HOLD = """
import sys, time
from pathlib import Path
from tersor.workloads.ranks import Ranks
from tersor.workloads.training.run_folder import locked_run_folder
with locked_run_folder(Path(sys.argv[1]), Ranks(0, 1), shared=True):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(run_folder, "_PATIENCE_S", 0.0)


def test_a_second_run_is_refused_while_the_first_lives(tmp_path, impatient):
    folder = tmp_path / "run"
    with locked_run_folder(folder, ALONE, shared=True):
        pid = json.loads((folder / "rank-0.lock").read_text())["pid"]
        words = rf"in use by another run \(process {pid} on .* is its rank 0\); wait until"
        with pytest.raises(SpecError, match=words), locked_run_folder(folder, ALONE, shared=True):
            pass
        (folder / "log.jsonl").write_text("")
    with locked_run_folder(folder, ALONE, shared=True):
        pass
    assert [path.name for path in folder.iterdir()] == ["log.jsonl"]


def test_a_folder_made_for_nothing_goes(tmp_path):
    with locked_run_folder(tmp_path / "run", ALONE, shared=False):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()


def test_a_rank_that_lives_on_keeps_a_run_with_fewer_ranks_out(tmp_path, impatient):
    with (
        run_folder._locked(tmp_path, 3, "earlier"),
        pytest.raises(SpecError, match="is its rank 3"),
        locked_run_folder(tmp_path, ALONE, shared=True),
    ):
        pass


def test_a_killed_run_keeps_nobody_out(tmp_path, impatient):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY / "src")},
    ) as process:
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(SpecError, match=str(process.pid)),
            locked_run_folder(tmp_path, ALONE, shared=True),
        ):
            pass
        process.kill()
    assert (tmp_path / "rank-0.lock").exists()
    with locked_run_folder(tmp_path, ALONE, shared=True):
        pass
    assert not (tmp_path / "rank-0.lock").exists()


def in_their_own_folders(rank: int, folder: str) -> None:
    with locked_run_folder(Path(folder) / str(rank), Ranks.current(), shared=True):
        raise AssertionError


def test_ranks_that_see_different_folders_all_stop(tmp_path):
    first, second = run_ranks(in_their_own_folders, 2, str(tmp_path))
    assert (first.name, second.name) == ("SpecError", "SpecError")
    assert second.message.startswith("rank 1 does not find in ")
    assert second.message.endswith("name one on a disk that all ranks share")
    assert first.message == f"rank 1 cannot go on: {second.message}"
    assert list(tmp_path.iterdir()) == []


def in_one_folder(rank: int, folder: str) -> list[str]:
    ranks = Ranks.current()
    with locked_run_folder(Path(folder), ranks, shared=True):
        ranks.gathered(None)
        found = sorted(path.name for path in Path(folder).iterdir())
        ranks.gathered(None)
    return found


def test_every_rank_holds_a_lock_of_its_own(tmp_path):
    locks = ["rank-0.lock", "rank-1.lock"]
    assert returned(run_ranks(in_one_folder, 2, str(tmp_path / "run"))) == [locks, locks]


def saved(rank: int, folder: str, num_steps: int) -> None:
    """Train and save so many times."""
    run = DlrmRun(config(), SOURCE)
    for _ in range(num_steps):
        run.step()
        save_checkpoint(run, Path(folder))
    run.close()


def resumed(rank: int, *folders: str) -> int:
    """Go on in a folder per rank."""
    run = DlrmRun(config(), SOURCE)
    try:
        return resume(run, Path(folders[rank % len(folders)]))
    finally:
        run.close()


def both_stopped(results: list[Failure]) -> str:
    """Return the sentence that both ranks stopped with, from the names of their folders on."""
    assert all(isinstance(result, Failure) for result in results), results
    assert results[0].name == results[1].name == "SpecError"
    partitions = [result.message.partition(" (") for result in results]
    assert all("do not see the same checkpoint in " in head for head, _, _ in partitions)
    assert partitions[0][2] == partitions[1][2]
    return partitions[0][2]


def test_ranks_that_see_different_checkpoints_all_stop(tmp_path):
    for name, num_steps in (("one", 2), ("other", 1)):
        returned(run_ranks_saved(tmp_path / name, num_steps))
    one, other, none = (str(tmp_path / name) for name in ("one", "other", "none"))
    words = both_stopped(run_ranks(resumed, 2, one, none))
    assert "rank 0 sees step 2 of run " in words
    assert "; rank 1 sees none); name one folder on a disk that all ranks share" in words
    words = both_stopped(run_ranks(resumed, 2, one, other))
    assert "rank 0 sees step 2 of run" in words
    assert "; rank 1 sees step 1 of run" in words


def run_ranks_saved(folder: Path, num_steps: int) -> list[object]:
    found = run_ranks(saved, 2, str(folder), num_steps)
    return [True if result is None else result for result in found]


def test_two_runs_at_the_same_step_are_told_apart(tmp_path):
    for name in ("one", "other"):
        returned(run_ranks_saved(tmp_path / name, 1))
    words = both_stopped(run_ranks(resumed, 2, str(tmp_path / "one"), str(tmp_path / "other")))
    ids = [
        json.loads((tmp_path / name / "step-000000001/complete.json").read_text())["run_id"]
        for name in ("one", "other")
    ]
    assert f"rank 0 sees step 1 of run {ids[0]}" in words
    assert f"rank 1 sees step 1 of run {ids[1]}" in words


@pytest.mark.parametrize("name", ["rank-1.tsr", "rank-1.json"])
def test_a_file_of_another_save_stops_all_ranks(tmp_path, name):
    for run in ("one", "other"):
        returned(run_ranks_saved(tmp_path / run, 1))
    target = tmp_path / "one/step-000000001" / name
    shutil.copy(tmp_path / "other/step-000000001" / name, target)
    first, second = run_ranks(resumed, 2, str(tmp_path / "one"))
    assert second.name == "CorruptDataError"
    assert f"{target} is of another save than the complete.json next to it" in second.message
    assert first.message == f"rank 1 cannot go on: {second.message}"


def test_a_missing_file_of_one_rank_stops_all_ranks(tmp_path):
    returned(run_ranks_saved(tmp_path, 1))
    (tmp_path / "step-000000001/rank-1.tsr").unlink()
    first, second = run_ranks(resumed, 2, str(tmp_path))
    assert (second.name, "rank-1.tsr cannot be read" in second.message) == (
        "CorruptDataError",
        True,
    )
    assert first.message == f"rank 1 cannot go on: {second.message}"


def without_ids(path: Path) -> None:
    """Make a checkpoint what earlier versions wrote."""
    facts = json.loads((path / "complete.json").read_text())
    del facts["run_id"], facts["save_id"]
    (path / "complete.json").write_text(json.dumps(facts, sort_keys=True))
    state = load(path / "rank-0.tsr")
    del state["save_id"]
    save(path / "rank-0.tsr", state, codec="raw")
    counted = json.loads((path / "rank-0.json").read_text())["stats"]
    (path / "rank-0.json").write_text(json.dumps(counted))


def test_a_checkpoint_of_before_there_were_ids_still_resumes(tmp_path):
    saved(0, str(tmp_path), 2)
    (*_, path) = sorted(tmp_path.iterdir())
    expected = load(path / "rank-0.tsr")
    without_ids(path)
    run = DlrmRun(config(), SOURCE)
    assert resume(run, tmp_path) == 2
    assert run.exchange.stats.num_exchanges == 2
    for name, value in run.state().items():
        assert torch.equal(value, expected[name])
    shutil.copy(min(tmp_path.iterdir()) / "rank-0.tsr", path / "rank-0.tsr")
    with pytest.raises(CorruptDataError, match="of another save"):
        resume(run, tmp_path)


def test_a_run_keeps_its_id_when_it_goes_on(tmp_path):
    first = DlrmRun(config(), SOURCE)
    first.step()
    save_checkpoint(first, tmp_path)
    second = DlrmRun(config(), SOURCE)
    assert first.run_id != second.run_id
    resume(second, tmp_path)
    assert first.run_id == second.run_id


def test_what_killed_runs_left_goes_and_nothing_else(tmp_path):
    for name in (
        "step-000000001/complete.json", "step-000000001/rank-0.tsr", "step-000000001/.tersor-1.tmp",
        "step-000000002/rank-0.tsr", "step-notes/mine",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["step-000000001/complete.json", "step-000000001/rank-0.tsr", "step-notes/mine"]


def test_a_folder_of_someone_else_is_no_checkpoint(tmp_path):
    saved(0, str(tmp_path), 1)
    for name in ("step-notes", "step-12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "complete.json").write_text("{}")
    (tmp_path / "step-notes/.tersor-1.tmp").write_text("")
    assert complete_checkpoints(tmp_path) == [tmp_path / "step-000000001"]
    assert last_step(tmp_path) == 1
    assert resume(DlrmRun(config(), SOURCE), tmp_path) == 1
    remove_leftovers(tmp_path)
    assert (tmp_path / "step-notes/.tersor-1.tmp").exists()
