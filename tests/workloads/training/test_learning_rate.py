from __future__ import annotations

import pytest

from tersor.errors import SpecError
from tersor.workloads.training.config import TrainingConfig
from tersor.workloads.training.learning_rate import LearningRate


def test_a_rate_grows_falls_and_stays():
    rate = LearningRate(0.8, "linear", warmup=4, end=8, final=0.4)
    found = [rate.at(step) for step in range(10)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4])
    assert {LearningRate(0.1).at(step) for step in (0, 1, 10**9)} == {0.1}


def test_a_cosine_is_halfway_at_half_of_its_steps():
    rate = LearningRate(1.0, "cosine", end=10)
    assert [rate.at(step) for step in (0, 5, 10, 99)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LearningRate(0.1, "sideways"), "constant, linear, cosine"),
        (lambda: LearningRate(0.0), "above 0"),
        (lambda: LearningRate(0.1, final=-1.0), "nothing below 0"),
        (lambda: LearningRate(0.1, "cosine", warmup=5, end=5), "after its warm-up of 5 steps"),
        (lambda: TrainingConfig(batch=0), "cannot be trained"),
        (lambda: TrainingConfig(batch=True), "batch must be a whole number, not True"),
    ],
)
def test_what_cannot_be_followed_is_refused(make, words):
    with pytest.raises(SpecError, match=words):
        make()
