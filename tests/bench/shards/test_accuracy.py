"""Trainings of a GPT by scheme: planned, made, and gone on with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tersor.bench.core.rows import TrainingRow, latest
from tersor.bench.shards import accuracy
from tersor.bench.shards.accuracy import AccuracyConfig, run_accuracy
from tersor.errors import ExchangeError, SpecError
from tersor.workloads.data.synthetic_text import SyntheticText
from tersor.workloads.gpt import GptConfig
from tersor.workloads.models.gpt import GptShape
from tersor.workloads.training.judgement import Outcome

SOURCE = SyntheticText(num_train=500, num_validation=20)
SHAPE = GptShape(layers=1, width=32, heads=2, context=16, vocabulary=256)


def planned(**options: Any) -> AccuracyConfig:
    training = GptConfig(
        shape=SHAPE, batch=8, steps=4, learning_rate=1e-2, ranks=4, ranks_per_node=2
    )
    values = {"training": training, "model": "gpt-tiny", "schemes": ("both",), "seeds": (0, 1)}
    return AccuracyConfig(**{**values, "num_evals": 2, **options})


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    """Return the rows of a whole plan, whose trainings are processes: it is run once for all tests."""
    said: list[Any] = []
    outcome = run_accuracy(planned(jobs=2), SOURCE, on_row=said.append)
    assert said == outcome.rows
    return said


def test_every_scheme_is_trained_with_every_seed_in_addition_to_exact(rows) -> None:
    assert {(row.codec, row.training.seed) for row in rows} == {
        (scheme, seed) for scheme in ("exact", "both") for seed in (0, 1)
    }
    for row in rows:
        assert isinstance(row, TrainingRow)
        # rows of before activations could be compressed have none, and are the same trainings
        assert "activations" not in row.spec["training"]
        assert [step for step, _ in row.training.curve] == [2, 4]
        assert row.quality is not None
        assert row.quality.loss is not None
        assert row.quality.loss.mean == row.training.curve[-1][1]
    both = next(row for row in rows if row.codec == "both")
    assert both.ratio > 1.5
    losses = {(row.codec, row.training.seed): row.training.curve[-1][1] for row in rows}
    assert len(set(losses.values())) == 4


def test_trainings_that_are_there_are_not_repeated(rows) -> None:
    first = next(row for row in rows if (row.codec, row.training.seed) == ("both", 0))
    done = frozenset(row.key for row in rows if row is not first)
    [again] = run_accuracy(planned(), SOURCE, done=done).rows
    assert (again.key, again.training.curve) == (first.key, first.training.curve)


def test_a_training_that_fails_ends_the_suite(capfd) -> None:
    shape = GptShape(layers=1, width=32, heads=2, context=16, vocabulary=100)
    training = GptConfig(shape=shape, batch=8, steps=2, ranks=4, ranks_per_node=2)
    with pytest.raises(ExchangeError, match="failed"):
        run_accuracy(planned(training=training, seeds=(0,)), SOURCE)
    assert "too few for the" in capfd.readouterr().err


def test_a_training_that_diverges_is_reported_and_others_go_on(monkeypatch) -> None:
    lines = [{"kind": "train", "step": 4, "step_s": 1.0}, {"kind": "eval", "step": 4, "loss": 2.0}]
    bad = [lines[0], {**lines[1], "loss": math.nan}]

    def trained(settings: Any, **_: Any) -> Any:
        [scheme] = settings
        return {scheme: Outcome(scheme, {}, lines if scheme == "exact" else bad, 4)}

    monkeypatch.setattr(accuracy, "train_settings", trained)
    outcome = run_accuracy(planned(schemes=("direct", "both"), seeds=(0,)), SOURCE)
    assert [row.codec for row in outcome.rows] == ["exact"]
    said = "{}, seed 0: the training diverged, and has no row"
    assert outcome.notes == [said.format("direct"), said.format("both")]
    # that direct does harm is what it is trained for
    assert outcome.refusals == [said.format("both")]


def test_trainings_on_other_ranks_are_not_taken_for_the_same(monkeypatch) -> None:
    lines = [{"kind": "train", "step": 4, "step_s": 1.0}, {"kind": "eval", "step": 4, "loss": 2.0}]

    def trained(settings: Any, **_: Any) -> Any:
        return {scheme: Outcome(scheme, {}, lines, 4) for scheme in settings}

    monkeypatch.setattr(accuracy, "train_settings", trained)
    gloo = GptConfig(shape=SHAPE, batch=8, steps=4)
    rows: list[Any] = []
    for options in (
        {"training": gloo, "processes": 2},
        {"training": gloo, "processes": 4},
        {"training": replace(gloo, ranks=4)},
    ):
        done = frozenset(row.key for row in rows)
        rows += run_accuracy(planned(seeds=(0,), **options), SOURCE, done=done).rows
    assert [row.codec for row in latest(rows)] == ["exact", "both"] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schemes": ("odd",)}, "schemes are exact, direct"),
        ({"seeds": ()}, "at least one seed"),
        ({"jobs": 0}, "at least one seed, process, job"),
        ({"processes": 2}, "share one process or have one each"),
        ({"training": GptConfig(shape=SHAPE)}, "ranks exchange nothing when there is one"),
        ({"training": GptConfig(shape=SHAPE, batch=9, ranks=4)}, "batch of 9 cannot be shared"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, words) -> None:
    with pytest.raises(SpecError, match=words):
        planned(**options)
