"""Trainings that compress what they save: exact codecs change nothing, and runs resume bit for bit."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import SpecError, UnknownCodecError
from tersor.workloads.training import activations as training_activations
from tersor.workloads.training.activations import ActivationOptions, BalancedActivations
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train
from tests.checks import assert_bits_equal
from tests.workloads.training.small_runs import RUNS, graph_run, make_small


@pytest.fixture(autouse=True)
def _small_models(monkeypatch) -> None:
    make_small(monkeypatch)


@pytest.mark.parametrize("name", RUNS)
def test_a_lossless_codec_changes_no_step(name) -> None:
    exact, other = RUNS[name](None), RUNS[name](ActivationOptions(codec="raw"))
    for _ in range(3):
        assert exact.step() == other.step()
    for key, value in exact.state().items():
        assert_bits_equal(other.state()[key], value)


@pytest.mark.parametrize("name", ["alexnet", "resnet34", "gpt", "csr", "matmul", "linear"])
def test_what_is_saved_shrinks_and_the_model_learns(name) -> None:
    run = RUNS[name](ActivationOptions(step=0.5))
    with RunLog(None) as log:
        train(run, Schedule(log_every=3), log)
    losses = [line["loss"] for line in log.lines if line["kind"] == "train"]
    assert all(line["activation_ratio"] > 4 for line in log.lines if line["kind"] == "train")
    assert losses[1] < losses[0] + 0.1
    report = log.lines[-1]["activations"]
    assert report["codec"] == "rms"
    assert report["held_nbytes"] * 4 < report["original_nbytes"]


def test_every_form_of_a_graph_holds_the_same_bytes_in_place_of_the_same() -> None:
    found = []
    for form in ("csr", "matmul", "linear"):
        run = graph_run(form, ActivationOptions(step=0.5))
        run.step()
        report = run.activations.report()
        # the matrix is the run's own
        assert "held by others" in report.forms
        found.append((report.original_nbytes, report.held_nbytes))
    assert found == [found[0]] * 3


@pytest.mark.parametrize("name", ["alexnet", "gpt", "csr"])
@pytest.mark.parametrize(
    "options",
    [{"step": 1.0}, {"bound": 0.01}, {"target_score": 0.9}, {"budget_nbytes": 60_000}],
    ids=lambda options: next(iter(options)),
)
def test_a_resumed_run_takes_the_same_steps(tmp_path, name, options) -> None:
    activations = ActivationOptions(**options)
    whole, first = RUNS[name](activations), RUNS[name](activations)
    for _ in range(6):
        whole.step()
    # the score is predicted in the first step, and the next one learns from it
    first.step()
    save_checkpoint(first, tmp_path)
    second = RUNS[name](activations)
    assert resume(second, tmp_path) == 1
    for _ in range(5):
        second.step()
    assert second.state().keys() == whole.state().keys()
    for key, value in whole.state().items():
        assert_bits_equal(second.state()[key], value)


@pytest.mark.parametrize("name", ["resnet34", "alexnet", "gpt", "csr"])
@pytest.mark.parametrize(
    "options", [{"step": 1.0}, {"budget_nbytes": 10**8}], ids=["step", "budget"]
)
def test_a_balanced_run_takes_the_same_steps_when_it_is_resumed(
    tmp_path, monkeypatch, name, options
) -> None:
    monkeypatch.setattr(training_activations, "_FIRST_BALANCE", 2)
    activations = BalancedActivations(**options, parts="tensor")
    whole, first, second = (RUNS[name](activations) for _ in range(3))
    with RunLog(None) as log:
        train(whole, Schedule(), log)
    for _ in range(2):
        first.step()
    # the parts are compared after resuming, before the same step
    save_checkpoint(first, tmp_path)
    assert resume(second, tmp_path) == 2
    # as in another process
    torch.manual_seed(12345)
    with RunLog(None) as log:
        train(second, Schedule(), log)
    assert second.activations.report().factors == whole.activations.report().factors
    for key, value in whole.state().items():
        assert_bits_equal(second.state()[key], value)


@pytest.mark.parametrize("name", ["alexnet", "csr"])
def test_a_balance_computes_with_the_random_numbers_of_its_step(monkeypatch, name) -> None:
    monkeypatch.setattr(training_activations, "_FIRST_BALANCE", 2)
    losses = []
    for seed in (1, 2):
        run = RUNS[name](BalancedActivations(step=1.0))
        run.step(), run.step()
        loss = run._loss
        run._loss = lambda batch, loss=loss: losses.append(loss(batch)) or losses[-1]
        torch.manual_seed(seed)
        run.balance_activations(run.batch(run.step_number))
    half = len(losses) // 2
    assert half > 2
    values = [float(x.detach()) for x in losses]
    assert values[:half] == values[half:]


def test_a_balance_takes_no_more_sequences_than_a_step_computes_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(training_activations, "_FIRST_BALANCE", 2)
    run = RUNS["gpt"](BalancedActivations(step=1.0))
    run.step(), run.step()
    sizes, forward = [], run.model.forward
    run.model.forward = lambda x: sizes.append(len(x)) or forward(x)
    run.balance_activations(run.batch(run.step_number))
    assert set(sizes) == {2}


def test_a_training_that_ends_before_its_first_balance_is_refused() -> None:
    with pytest.raises(SpecError, match="after 50 steps, and this training ends after 6"):
        RUNS["gpt"](BalancedActivations(step=1.0))


def test_parts_are_balanced_at_powers_of_two_times_the_first_step() -> None:
    options = BalancedActivations()
    assert [k for k in range(1001) if options.is_due(k)] == [50, 100, 200, 400, 800]


@pytest.mark.parametrize("options", [{"bound": 0.1}, {"codec": "group4"}, {"parts": "layer"}])
def test_balances_without_a_common_level_are_refused(options) -> None:
    with pytest.raises(SpecError, match=r"balanced|parts"):
        BalancedActivations(**options)


def test_a_checkpoint_of_other_activations_is_refused(tmp_path) -> None:
    save_checkpoint(RUNS["csr"](None), tmp_path)
    with pytest.raises(SpecError, match="another activations; give the same options"):
        resume(RUNS["csr"](ActivationOptions(step=1.0)), tmp_path)
    with pytest.raises(SpecError, match="no state of compressed activations"):
        RUNS["csr"](ActivationOptions()).load_state(RUNS["csr"](None).state())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"step": 1.0, "bound": 0.1}, SpecError, "not step and bound"),
        ({"codec": "ans", "step": 1.0}, SpecError, "codec 'ans' has no"),
        ({"codec": "nothing"}, UnknownCodecError, "nothing"),
        ({"target_score": 2.0}, SpecError, "target"),
    ],
)
def test_options_are_refused_before_a_model_is_made(options, error, words) -> None:
    with pytest.raises(error, match=words):
        ActivationOptions(**options)
