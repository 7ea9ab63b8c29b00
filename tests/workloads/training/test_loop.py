"""Any training trains in the loop, resumes bit for bit, and is compared by its own metric."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tersor.workloads.training.comparison import train_pairs
from tersor.workloads.training.judgement import Judgement, Metric
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train
from tests.checks import assert_bits_equal
from tests.workloads.training.toy import ToyConfig, ToyRun

CONFIG = ToyConfig(batch=8, steps=6, learning_rate=0.2, seed=3)


def trained(config: ToyConfig, num_steps: int) -> ToyRun:
    run = ToyRun(config)
    for _ in range(num_steps):
        run.step()
    return run


def test_a_training_with_random_steps_resumes_exactly(tmp_path):
    whole, first = trained(CONFIG, 6), trained(CONFIG, 3)
    save_checkpoint(first, tmp_path)
    # what is drawn meanwhile must not matter
    torch.rand(7)
    second = ToyRun(CONFIG)
    assert resume(second, tmp_path) == 3
    for _ in range(3):
        second.step()
    assert second.run_id == first.run_id
    for name, value in whole.state().items():
        assert_bits_equal(second.state()[name], value)


def test_random_numbers_of_a_step_differ_by_seed_and_step():
    batch = torch.ones(8, 4)
    losses = set()
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        run = ToyRun(ToyConfig(batch=8, seed=3))
        run.config = ToyConfig(batch=8, seed=seed)
        run.step_number = step
        losses.add(run.step(batch))
    assert len(losses) == 3


def test_each_step_has_the_learning_rate_of_its_number():
    run = ToyRun(CONFIG)
    found = []
    while run.step_number < 6:
        run.step()
        found.append(run.optimizer.param_groups[0]["lr"])
    assert found == [run.learning_rate.at(step) for step in range(6)]
    assert found[:3] == [0.1, 0.2, 0.2]


def test_a_log_ends_with_the_totals_of_its_training(tmp_path):
    run, shown = ToyRun(CONFIG), []
    run.totals = lambda: {"points": 48}
    schedule = Schedule(log_every=3, eval_every=3)
    with RunLog(tmp_path, show=shown.append) as log:
        metrics = train(run, schedule, log)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == log.lines == shown
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 3), ("eval", 3), ("train", 6), ("eval", 6), ("end", 6),
    ]  # fmt: skip
    assert lines[-2]["error"] == metrics.error
    assert lines[-1]["points"] == 48
    with RunLog(tmp_path) as log:
        assert log.ended_at == 6


@pytest.mark.parametrize("change", [{"dropout": 0.25}, {"learning_rate": 0.1}])
def test_a_checkpoint_of_other_options_is_refused(tmp_path, change):
    save_checkpoint(trained(CONFIG, 1), tmp_path)
    other = ToyConfig(**{**CONFIG.to_config(), **change})
    with pytest.raises(
        SpecError, match=rf"of a run with another {next(iter(change))}; give the same"
    ):
        resume(ToyRun(other), tmp_path)


def two_rates(seed: int) -> dict[str, partial[ToyRun]]:
    return {
        name: partial(
            ToyRun, ToyConfig(batch=8, steps=20, learning_rate=rate, seed=seed, dropout=0.0)
        )
        for name, rate in (("slow", 1e-6), ("fast", 0.2))
    }


def test_two_settings_are_judged_by_a_metric_of_the_training():
    reports = []
    pairs = list(
        train_pairs(
            two_rates, [0, 1, 2], ranks=1, eval_every=10, progress=lambda *x: reports.append(x)
        )
    )
    judged = Judgement.of(Metric("error", higher_is_better=False), pairs)
    assert judged.verdict == "better"
    assert [pair.seed for pair in pairs] == [0, 1, 2]
    assert {one.first.name for one in pairs} == {"slow"}
    assert pairs[1].second.config["seed"] == 1
    assert reports[-1] == (40, 40, reports[-1][2])
    assert reports[-1][2].startswith("seed 2, fast, loss ")
