"""Trainings measure the score by a part of a batch, which steers the level, and resume bit for bit."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.training import activations as training_activations
from tersor.workloads.training.activations import ActivationOptions, BalancedActivations
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train
from tersor.workloads.vision import run as vision_run
from tests.checks import assert_bits_equal
from tests.sites.ranks import returned, run_ranks
from tests.workloads.training.small_runs import RUNS, Run, make_small

STEERED = ActivationOptions(target_score=0.5, probe_every=2)


@pytest.fixture(autouse=True)
def _small_models(monkeypatch) -> None:
    make_small(monkeypatch)


def trained(run: Run, folder: Path | None = None) -> list[dict[str, object]]:
    """Train to the end, with a checkpoint at every step if there is a folder; return the lines of the log."""
    schedule = Schedule(log_every=1, checkpoint_every=1 if folder else 0, checkpoints=folder)
    with RunLog(None) as log:
        train(run, schedule, log)
    return log.lines


@pytest.mark.parametrize("name", ["resnet34", "gpt"])
def test_a_training_with_norms_lets_its_level_grow(name, caplog) -> None:
    caplog.set_level(logging.WARNING, logger="tersor")
    run = RUNS[name](STEERED)
    lines = trained(run)
    probes = [line for line in lines if line["kind"] == "probe"]
    assert [line["step"] for line in probes] == [2, 4]
    assert [line["score_level"] for line in probes] != [0.5, 0.5]
    assert probes[0]["activation_level"] > probes[0]["score_level"] == 0.5
    last = {name: value for name, value in probes[1].items() if name != "kind"}
    assert lines[-1]["probe"] == last
    assert not [line for line in caplog.messages if "target_score" in line]


def test_a_training_without_probes_says_that_its_level_waits_for_one(caplog) -> None:
    caplog.set_level(logging.WARNING, logger="tersor")
    lines = trained(RUNS["resnet34"](ActivationOptions(target_score=0.5)))
    assert max(line.get("activation_level", 0.0) for line in lines) == 0.5
    assert "probe" not in lines[-1]
    (said,) = (line for line in caplog.messages if "target_score" in line)
    assert "--activation-probe-every 50" in said


def test_a_fixed_step_is_probed_too() -> None:
    lines = trained(RUNS["gpt"](ActivationOptions(step=1.0, probe_every=3)))
    (probe,) = (line for line in lines if line["kind"] == "probe")
    assert probe["score_level"] == probe["activation_level"] == 1.0
    assert 0 < probe["score"] < 1


@pytest.mark.parametrize("name", ["resnet34", "alexnet", "gpt", "csr"])
@pytest.mark.parametrize("step", [1, 2, 3, 6])
def test_a_probed_run_takes_the_same_steps_when_it_is_resumed(tmp_path, name, step) -> None:
    whole, first = RUNS[name](STEERED), RUNS[name](STEERED)
    lines = trained(whole)
    for _ in range(step):
        first.probe_activations(first.batch(first.step_number))
        first.step()
    save_checkpoint(first, tmp_path)
    second = RUNS[name](STEERED)
    assert resume(second, tmp_path) == step
    # as in another process
    torch.manual_seed(12345)
    assert trained(second)[-1]["probe"] == lines[-1]["probe"]
    assert second.state().keys() == whole.state().keys()
    for key, value in whole.state().items():
        assert_bits_equal(second.state()[key], value)


@pytest.mark.parametrize("name", ["alexnet", "csr"])
def test_a_probe_computes_with_the_random_numbers_of_its_step(name) -> None:
    values = []
    for seed in (1, 2):
        run = RUNS[name](STEERED)
        run.step(), run.step()
        torch.manual_seed(seed)
        values.append(run.probe_activations(run.batch(run.step_number)))
    assert values[0] == values[1]


@pytest.mark.parametrize(("name", "size"), [("gpt", 1), ("resnet34", 4)])
def test_a_probe_takes_a_part_of_a_batch(monkeypatch, name, size) -> None:
    monkeypatch.setattr(training_activations, "_PROBED_FRACTION", 2)
    monkeypatch.setattr(vision_run, "_LEAST_PROBED", 1)
    run = RUNS[name](STEERED)
    run.step(), run.step()
    sizes, forward = [], run.model.forward
    run.model.forward = lambda x: sizes.append(len(x)) or forward(x)
    run.probe_activations(run.batch(run.step_number))
    assert sizes == [size, size]


def test_a_balance_stands_in_for_a_probe(monkeypatch) -> None:
    monkeypatch.setattr(training_activations, "_FIRST_BALANCE", 2)
    lines = trained(RUNS["gpt"](BalancedActivations(target_score=0.9, probe_every=1)))
    found = [(line["step"], line["kind"]) for line in lines if line["kind"] in ("balance", "probe")]
    assert found == [(1, "probe"), (2, "balance"), (3, "probe"), (4, "balance"), (5, "probe")]


def test_a_checkpoint_from_before_there_were_probes_is_of_the_same_options(tmp_path) -> None:
    options = ActivationOptions(target_score=0.9)
    run = RUNS["csr"](options)
    assert "probe_every" not in run.config.to_config()["activations"]
    save_checkpoint(run, tmp_path)
    with pytest.raises(SpecError, match="another activations; give the same options"):
        resume(RUNS["csr"](ActivationOptions(target_score=0.9, probe_every=5)), tmp_path)


@pytest.mark.parametrize("every", [-1, 2.5, True])
def test_probes_at_no_number_of_steps_are_refused(every) -> None:
    with pytest.raises(SpecError, match="probe_every must be a whole number of steps, or 0"):
        ActivationOptions(target_score=0.9, probe_every=every)


RUNS_OF_RANKS = {
    "resnet34": RUNS["resnet34"],
    "gpt": RUNS["gpt"],
    "gpt with compressed exchanges": partial(RUNS["gpt"], scheme="both", ranks_per_node=1),
}


def states_of_ranks(rank: int, name: str, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the state after six probed steps, and that of a run resumed before its first probe."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        made = partial(RUNS_OF_RANKS[name], STEERED)
        whole, first, second = made(), made(), made()
        trained(whole)
        first.step(), first.step()
        save_checkpoint(first, folder)
        assert resume(second, folder) == 2
        trained(second)
        return {"whole": whole.state(), "resumed": second.state()}


@pytest.mark.parametrize("name", RUNS_OF_RANKS)
def test_ranks_probe_together(tmp_path, name) -> None:
    ranks = returned(run_ranks(states_of_ranks, 2, name, tmp_path))
    for one in ranks:
        assert one["whole"].keys() == one["resumed"].keys()
        for key, value in one["whole"].items():
            assert_bits_equal(one["resumed"][key], value)
    # each rank has measured its own gradients
    assert not torch.equal(ranks[0]["whole"]["last_probe"], ranks[1]["whole"]["last_probe"])
