"""Two ranks under torchrun, killed at any moment: they go on exactly, or say why not."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tersor.api import load
from tests.arch.source_files import REPOSITORY
from tests.processes import assert_ended, children_of, is_running

STEPS = 120
SMALL = (
    "train", "dlrm", "--max-rows", "30", "--batch", "64", "--eval-samples", "256", "--json",
    "--steps", str(STEPS), "--checkpoint-every", "3", "--log-every", "0",
)  # fmt: skip
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(REPOSITORY / "src"),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def launched(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start two ranks with torchrun."""
    words = ("--standalone", "--nproc-per-node", "2", "-m", "tersor", *SMALL, "--run-dir")
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words, str(folder), *options],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def sentences(words: str) -> list[str]:
    """Return what the ranks said for people to read, each once."""
    return list(dict.fromkeys(line for line in words.splitlines() if line.startswith("tersor: ")))


def final_state(folder: Path) -> dict[str, Any]:
    """Return the state of all ranks after the last step, and what they counted without times."""
    path = folder / f"checkpoints/step-{STEPS:09d}"
    found: dict[str, Any] = {}
    for rank in range(2):
        state = load(path / f"rank-{rank}.tsr")
        del state["save_id"]
        found |= {f"{rank}/{name}": value for name, value in state.items()}
        stats = json.loads((path / f"rank-{rank}.json").read_text())["stats"]
        for direction in ("forward", "backward"):
            del stats[direction]["seconds"]
        found[f"{rank}/stats"] = stats
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


@dataclass
class Kill:
    """What is killed, and when.

    Attributes:
        launcher: whether it is torchrun, and not workers.
        workers: which of these.
        in_training: whether the moment counts from the first checkpoint on, and not from the start.
        share: of the time that this takes, after which the kill comes.
    """

    launcher: bool
    workers: tuple[int, ...]
    in_training: bool
    share: float


def kills(rounds: int, seed: int) -> list[Kill]:
    dice = random.Random(seed)
    return [
        Kill(
            launcher=number % 2 == 0,
            workers=dice.choice([(0,), (1,), (0, 1)]),
            in_training=number % 4 < 3,
            share=dice.random(),
        )
        for number in range(rounds)
    ]


@dataclass(frozen=True)
class Whole:
    """A run that nobody killed.

    Attributes:
        state: what it came to.
        start_s: from its start to the first checkpoint.
        training_s: from there to its end.
    """

    state: dict[str, Any]
    start_s: float
    training_s: float


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Whole:
    folder = tmp_path_factory.mktemp("whole") / "run"
    begin = time.monotonic()
    with launched(folder) as process:
        wait_for_checkpoint(folder, process)
        middle = time.monotonic()
        words = process.communicate(timeout=300)[1]
    assert process.returncode == 0, words
    return Whole(final_state(folder), middle - begin, time.monotonic() - middle)


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not list(folder.glob("checkpoints/*/complete.json")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed(folder: Path, kill: Kill, whole: Whole) -> list[int]:
    """Start a run and kill a part of it; return the workers, some of which may live on."""
    with launched(folder) as process:
        if kill.in_training:
            wait_for_checkpoint(folder, process)
        time.sleep(kill.share * (whole.training_s if kill.in_training else whole.start_s))
        workers = children_of(process.pid)
        if kill.launcher:
            process.kill()
        else:
            for pid in [pid for k, pid in enumerate(workers) if k in kill.workers]:
                os.kill(pid, signal.SIGKILL)
        if not kill.launcher and not workers:
            process.kill()
        # a pipe that orphans hold is not read to its end
        process.wait(120)
        process.stderr.close()
    return workers


def gone_on(folder: Path) -> tuple[int, str]:
    with launched(folder, "--resume") as process:
        words = process.communicate(timeout=300)[1]
    return process.returncode, words


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_exactly_or_says_why_not(rounds, whole, tmp_path) -> None:
    outcomes = []
    for number, kill in enumerate(kills(rounds, seed=rounds)):
        folder = tmp_path / str(number)
        workers = killed(folder, kill, whole)
        # at once, whoever lives on
        code, words = gone_on(folder)
        if code:
            assert sentences(words), f"{kill}\n{words}"
            assert len(sentences(words)) <= 2, f"{kill}\n{words}"
            assert "Traceback" not in words, f"{kill}\n{words}"
        assert_ended(workers)
        outcomes.append("exact at once" if code == 0 else f"{kill}: {sentences(words)}")
        if code:
            code, words = gone_on(folder)
        assert code == 0, f"{kill}\n{words}"
        assert_same(final_state(folder), whole.state)
    print("\n".join(outcomes))


def test_workers_end_with_their_launcher(tmp_path) -> None:
    folder = tmp_path / "run"
    with launched(folder, "--steps", "1000000") as process:
        wait_for_checkpoint(folder, process)
        workers = children_of(process.pid)
        assert len(workers) == 2
        assert all(is_running(pid) for pid in workers)
        process.kill()
        words = process.communicate(timeout=120)[1]
    assert_ended(workers)
    assert sentences(words)[0].startswith("tersor: torchrun is gone, and this rank ends with it")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_ranks_in_different_folders_all_stop_with_one_sentence(tmp_path) -> None:
    port = free_port()
    processes = []
    for rank in range(2):
        place = tmp_path / str(rank)
        place.mkdir()
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tersor", *SMALL, "--run-dir", "run"],
                cwd=place,
                env=ENVIRONMENT | ranks | {"MASTER_PORT": str(port)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = [(*process.communicate(timeout=300), process.returncode) for process in processes]
    for out, words, code in found:
        assert (out, code) == ("", 2), words
        (sentence,) = sentences(words)
        assert "rank 1 does not find in run what rank 0 wrote there" in sentence
        assert "Traceback" not in words
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0", "1"]
