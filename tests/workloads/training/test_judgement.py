"""What may be said about the difference of paired trainings, by any metric."""

from __future__ import annotations

import math

import pytest

from tersor.errors import SpecError
from tersor.workloads.training.judgement import Interval, Judgement, Metric, Outcome, Pair


def test_an_interval_is_that_of_students_t():
    # mean 3, sample deviation sqrt(2.5), and 2.776 for four degrees of freedom
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert not found.holds_zero
    assert Interval.of([-1.0, 1.5, -0.5]).holds_zero


def test_one_difference_says_nothing_and_none_is_refused():
    assert Interval.of([0.1]).half_width == math.inf
    assert Interval.of([0.1]).holds_zero
    with pytest.raises(SpecError, match="at least one"):
        Interval.of([])


def pairs(name: str, changes: list[float]) -> list[Pair[Outcome]]:
    """Return pairs of trainings that differ by so much in one metric."""
    return [
        Pair(seed, *(Outcome(words, {name: value}, [], 1) for words, value in runs.items()))
        for seed, change in enumerate(changes)
        for runs in [{"plain": 1.0 + seed, "small": 1.0 + seed + change}]
    ]


@pytest.mark.parametrize("higher", [True, False])
def test_a_change_is_better_or_worse_as_the_metric_goes(higher):
    metric, words = Metric("psnr", higher), ("worse", "better")
    grows = Judgement.of(metric, pairs("psnr", [0.5, 0.51, 0.49]))
    falls = Judgement.of(metric, pairs("psnr", [-0.5, -0.51, -0.49]))
    assert (grows.verdict, falls.verdict) == (words[higher], words[not higher])
    assert grows.change.mean == pytest.approx(0.5)
    assert Judgement.of(metric, pairs("psnr", [0.5, -0.5, 0.1])).verdict == "no difference"
    assert Judgement.of(metric, pairs("psnr", [0.5])).verdict == "no difference"
    assert Judgement.of(metric, pairs("psnr", [0.5, math.nan])).verdict == "unknown"


def test_a_metric_that_a_training_does_not_have_is_refused():
    words = "the training 'plain' has no metric 'auc'; choose one of psnr"
    with pytest.raises(SpecError, match=words):
        Judgement.of(Metric("auc", higher_is_better=True), pairs("psnr", [0.1]))
