"""Trainings with compressed activations: planned, made, and gone on with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tersor.bench.activations import accuracy
from tersor.bench.activations.accuracy import AccuracyConfig, run_accuracy
from tersor.bench.activations.recipes import recipe_of
from tersor.bench.activations.training import Trained, saved_bytes, train_once
from tersor.bench.activations.trainings import activation_trainings
from tersor.bench.core.rows import TrainingRow
from tersor.errors import SpecError
from tersor.sites.activations.report import ActivationReport, Tally
from tersor.workloads.training.activations import ActivationOptions
from tests.bench.activations.made import saved


def planned(**options: Any) -> AccuracyConfig:
    recipe = recipe_of("gpt-2M", "synthetic", {}, is_smoke=True)
    return AccuracyConfig(**{"recipe": recipe, "settings": ("rms-1",), "seeds": (0, 1), **options})


@pytest.fixture
def asked(monkeypatch):
    """Return what is trained; nothing is."""
    found = []

    def trained(make_run, **_):
        config = make_run.args[0]
        options = config.activations
        found.append((config.seed, options))
        loss = math.nan if options is not None and options.step == 8.0 else 2.0
        return Trained(
            metrics={"loss": loss, "accuracy": 0.5}, curve=[(1, 3.0), (2, loss)], step_s=0.1,
            saved=None if options is None else saved(11.0, 16.0),
            score=None if options is None else 0.97,
        )  # fmt: skip

    monkeypatch.setattr(accuracy, "trained", trained)
    return found


def test_every_setting_is_trained_with_every_seed_in_addition_to_exact(asked):
    outcome = run_accuracy(planned())
    assert asked == [
        (seed, options) for seed in (0, 1) for options in (None, ActivationOptions(step=1.0))
    ]
    assert [(row.codec, row.training.seed) for row in outcome.rows] == [
        (setting, seed) for seed in (0, 1) for setting in ("exact", "rms-1")
    ]
    own = outcome.rows[1]
    assert isinstance(own, TrainingRow)
    assert (own.quality.accuracy.mean, own.quality.score.mean) == (0.5, 0.97)
    assert own.training.saved == saved(11.0, 16.0)
    assert own.ratio == own.training.saved.ratio
    [place] = activation_trainings(outcome.rows)
    assert place.seeds("rms-1") == [0, 1]
    keys = frozenset(row.key for row in outcome.rows[1:])
    assert [row.codec for row in run_accuracy(planned(), done=keys).rows] == ["exact"]


def test_a_compressed_training_that_diverges_is_reported_and_others_go_on(asked):
    outcome = run_accuracy(planned(settings=("rms-8", "rms-1"), seeds=(0,)))
    assert [row.codec for row in outcome.rows] == ["exact", "rms-1"]
    assert outcome.refusals == ["rms-8, seed 0: the training diverged, and has no row"]


@pytest.mark.parametrize("model", ["gpt-2M", "gcn"])
def test_a_training_says_what_it_saved_and_how_good_its_gradients_were(model):
    options = {"steps": 2}
    recipe = recipe_of(model, "synthetic", options, is_smoke=True)
    make_run = AccuracyConfig(recipe=recipe).run_maker("group8", 0)
    messages: list[Any] = []
    train_once(0, messages.append, make_run=make_run, num_evals=1, eval_samples=4)
    *steps, found = messages
    assert steps[-1][:2] == (2, 2)
    assert found.curve[-1] == (2, found.metrics["loss"])
    assert found.saved.ratio > 2
    assert found.saved.floats_ratio > 2
    assert 0.9 < found.score < 1


def test_an_exact_training_is_not_touched():
    recipe = recipe_of("gpt-2M", "synthetic", {}, is_smoke=True)
    make_run = AccuracyConfig(recipe=recipe).run_maker("exact", 3)
    messages: list[Any] = []
    train_once(0, messages.append, make_run=make_run, num_evals=1, eval_samples=4)
    assert (messages[-1].saved, messages[-1].score) == (None, None)


def test_bytes_of_floats_are_all_but_those_of_integers():
    forms = {
        "rms": Tally(3, 1600, 100),
        "pooling indices": Tally(1, 320, 10),
        "integers": Tally(1, 80, 10),
        "parameters": Tally(5, 999, 999),
    }
    found = saved_bytes(ActivationReport(1, "rms", 1.0, forms))
    assert (found.nbytes, found.floats_nbytes) == (2000, 1600)
    assert (found.held_nbytes, found.held_floats_nbytes) == (120, 100)


def test_a_recipe_takes_the_steps_of_its_epochs_unless_others_are_asked_for():
    recipe = recipe_of("alexnet", "synthetic", {})
    assert recipe.training.steps == 40 * (8192 // 128)
    assert recipe_of("alexnet", "synthetic", {"steps": 7, "batch": 64}).training.steps == 7
    assert recipe_of("alexnet", "synthetic", {"preset": "authors"}).training.steps == 30 * (
        8192 // 20
    )
    assert (
        recipe_of("gpt-10M", "synthetic", {"dtype": "bf16"}).training.to_config()["dtype"] == "bf16"
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: recipe_of("vgg", "synthetic", {}), "models are alexnet, resnet34, gcn, gpt-2M"),
        (lambda: recipe_of("gcn", "synthetic", {"dtype": "bf16"}), "gcn computes in fp32"),
        (lambda: recipe_of("gcn", "synthetic", {"form": "odd"}), "form must be one of"),
        (lambda: recipe_of("alexnet", "synthetic", {"form": "csr"}), "only gcn has a form"),
        (lambda: recipe_of("gcn", "synthetic", {"preset": "cifar"}), "only alexnet and resnet34"),
        (lambda: recipe_of("alexnet", "synthetic", {"preset": "cifar"}), "preset must be one of"),
        (lambda: planned(settings=("checkpoint",)), "checkpoint is no setting to train with"),
        (lambda: planned(settings=("zip",)), "there is no 'zip'"),
        (lambda: planned(seeds=()), "at least one seed"),
        (lambda: planned(jobs=0), "at least one seed, job"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong, words):
    with pytest.raises(SpecError, match=words):
        wrong()
