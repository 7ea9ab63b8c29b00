"""Parts get levels at which another bit gains each of them the same."""

from __future__ import annotations

import math

import pytest

from tersor.errors import SpecError
from tersor.policy import balanced_factors


def _loss(losses: dict[str, float], factors: dict[str, float]) -> float:
    return sum(loss * factors[part] ** 2 for part, loss in losses.items())


def _nbits_saved(num_values: dict[str, int], factors: dict[str, float]) -> float:
    return sum(num * math.log2(factors[part]) for part, num in num_values.items())


def test_the_loss_stays_and_bits_are_saved() -> None:
    losses, num_values = {"a": 0.02, "b": 0.02, "c": 0.04}, {"a": 1000, "b": 3000, "c": 2000}
    factors = balanced_factors(losses, num_values)
    assert _loss(losses, factors) == pytest.approx(sum(losses.values()))
    assert _nbits_saved(num_values, factors) > 0


def test_no_other_factors_of_the_same_loss_save_more_bits() -> None:
    losses, num_values = {"a": 0.02, "b": 0.02, "c": 0.04}, {"a": 1000, "b": 3000, "c": 2000}
    factors = balanced_factors(losses, num_values)
    best = _nbits_saved(num_values, factors)
    for part in losses:
        for change in (0.9, 1.1):
            others = {**factors, part: factors[part] * change}
            # back to the same loss
            scale = math.sqrt(_loss(losses, factors) / _loss(losses, others))
            others = {name: factor * scale for name, factor in others.items()}
            assert _nbits_saved(num_values, others) < best


def test_equal_parts_keep_the_common_level() -> None:
    found = balanced_factors({"a": 0.1, "b": 0.2}, {"a": 10, "b": 20})
    assert found == pytest.approx({"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("loss", [0.0, -1e-9, 1e-300])
def test_factors_have_a_limit(loss) -> None:
    found = balanced_factors({"a": loss, "b": 0.1, "c": 50.0}, {"a": 10, "b": 10, "c": 1})
    assert found["a"] == 2.0
    assert found["c"] == 0.5


def test_nothing_is_balanced_where_nothing_is_lost() -> None:
    assert balanced_factors({"a": 0.0, "b": -1e-9}, {"a": 1, "b": 2}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    ("losses", "num_values"),
    [
        ({}, {}),
        ({"a": 0.1}, {"b": 1}),
        ({"a": 0.1}, {"a": 0}),
        ({"a": math.nan}, {"a": 1}),
        ({"a": math.inf}, {"a": 1}),
    ],
)
def test_what_cannot_be_balanced_is_refused(losses, num_values) -> None:
    with pytest.raises(SpecError):
        balanced_factors(losses, num_values)
