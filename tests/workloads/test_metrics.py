"""Metrics of predicted clicks, against counting by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.metrics import auc, click_metrics
from tests.checks import assert_rejects


def counted_auc(scores: list[float], weights: list[float]) -> float:
    """Compare every pair of samples: one a click, the other not."""
    above = pairs = 0.0
    for score, click in zip(scores, weights, strict=True):
        for other, other_click in zip(scores, weights, strict=True):
            pair = click * (1.0 - other_click)
            pairs += pair
            above += pair * (0.5 * (score == other) + (score > other))
    return above / pairs


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_auc_equals_counting_pairs_with_ties(levels, generator):
    scores = torch.randint(0, levels, (150,), generator=generator).double()
    labels = torch.randint(0, 2, (150,), generator=generator).double()
    expected = counted_auc(scores.tolist(), labels.tolist())
    # sums of integers and halves are exact; one division each
    assert auc(scores, labels) == expected


def test_auc_of_probabilities_is_the_expected_one(generator):
    scores = torch.randint(0, 9, (60,), generator=generator).double()
    chances = torch.rand(60, generator=generator, dtype=torch.float64)
    assert auc(scores, chances) == pytest.approx(
        counted_auc(scores.tolist(), chances.tolist()), rel=1e-12
    )
    # no other order of the samples has a higher one
    best = auc(chances, chances)
    for _ in range(20):
        assert auc(torch.rand(60, generator=generator), chances) < best


def test_auc_depends_on_order_only(generator):
    scores = torch.randn(200, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (200,), generator=generator).double()
    found = auc(scores, labels)
    assert auc(scores.exp() * 7, labels) == found
    assert auc(-scores, labels) == pytest.approx(1 - found, abs=1e-12)
    order = torch.randperm(200, generator=generator)
    assert auc(scores[order], labels[order]) == found


def test_auc_of_equal_labels_is_not_a_number():
    assert math.isnan(auc(torch.tensor([0.1, 0.2]), torch.tensor([1.0, 1.0])))


def test_one_sample_each_way():
    clicked = torch.tensor([0.0, 1.0])
    assert auc(torch.tensor([0.0, 1.0]), clicked) == 1.0
    assert auc(torch.tensor([1.0, 0.0]), clicked) == 0.0
    assert auc(torch.tensor([0.5, 0.5]), clicked) == 0.5


def test_logloss_and_accuracy_equal_their_definitions(generator):
    logits = torch.randn(100, generator=generator) * 3
    labels = torch.randint(0, 2, (100,), generator=generator).float()
    found = click_metrics(logits, labels)
    losses, right = [], 0
    for logit, label in zip(logits.tolist(), labels.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-logit))
        losses.append(-math.log(chance if label else 1 - chance))
        right += (chance > 0.5) == bool(label)
    assert found.logloss == pytest.approx(sum(losses) / 100, rel=1e-9)
    assert found.accuracy == right / 100
    assert found.auc == auc(logits, labels)
    assert found.num_samples == 100
    assert found.to_config()["accuracy"] == found.accuracy


def test_logits_beyond_exp_are_judged():
    found = click_metrics(torch.tensor([1000.0, -1000.0, 1000.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert found.logloss == pytest.approx(1000 / 3)


def test_nothing_to_judge_is_refused():
    assert_rejects(lambda: click_metrics(torch.zeros(0), torch.zeros(0)), SpecError)
    assert_rejects(lambda: click_metrics(torch.zeros(3), torch.zeros(2)), SpecError)
