"""Decay follows the published formulas, written down here a second time."""

from __future__ import annotations

import math

import pytest

from tersor.errors import SpecError
from tersor.policy.decay import SHAPES, Decay

END, MAGNITUDE = 65_536, 2.0

PUBLISHED = {
    "linear": lambda p, c: c * (1 - p * (1 - 1 / c)),
    "log": lambda p, c: c * ((1 - math.log(1 + p * (math.e - 1))) * (1 - 1 / c) + 1 / c),
    "step": lambda p, c: c * max(1 - math.floor(10 * p) * (1 - 1 / c) / 10, 1 / c),
    "constant": lambda p, c: c,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("iteration", [0, 1, 6_553, 6_554, 32_768, 58_983, 65_535])
def test_before_its_end_a_decay_is_the_published_formula(shape, iteration):
    expected = PUBLISHED[shape](iteration / END, MAGNITUDE)
    assert Decay(shape, MAGNITUDE, END).factor(iteration) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_decay_starts_at_its_magnitude_and_ends_at_one(shape):
    decay = Decay(shape, 3.0, 100)
    factors = [decay.factor(iteration) for iteration in range(102)]
    assert factors[0] == 3.0
    assert factors[100] == factors[101] == 1.0
    assert factors == sorted(factors, reverse=True)


def test_step_has_ten_stairs():
    decay = Decay("step", 2.0, 1000)
    factors = [decay.factor(iteration) for iteration in range(1001)]
    assert len(set(factors)) == 11
    assert factors[99] == 2.0 > factors[100] == factors[199] == 1.9


def test_no_decay_changes_nothing():
    assert {Decay.off().factor(iteration) for iteration in (0, 1, 10**9)} == {1.0}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"shape": "exponential"}, "step, linear, log, constant"),
        ({"magnitude": 0.5}, "at least 1"),
        ({"magnitude": math.inf}, "at least 1"),
        ({"magnitude": math.nan}, "at least 1"),
        ({"magnitude": "2"}, "at least 1"),
        ({"magnitude": True}, "at least 1"),
        ({"shape": None}, "step, linear, log, constant"),
        ({"end": -1}, "at least 0"),
        ({"end": 1.5}, "at least 0"),
        ({"end": True}, "at least 0"),
    ],
)
def test_what_is_no_decay_is_refused(options, word):
    with pytest.raises(SpecError, match=word):
        Decay(**options)


def test_a_negative_iteration_is_refused():
    with pytest.raises(SpecError, match="from 0"):
        Decay().factor(-1)
