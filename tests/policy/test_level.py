"""Levels go where a score or a budget says, and stay in their range."""

from __future__ import annotations

import math

import pytest
import torch

from tersor.errors import SpecError
from tersor.policy import BudgetController, LevelRange, ScoreController
from tersor.policy.similarity import gradient_similarity

LEVELS = LevelRange(0.03, 1e-4, 0.5)


def score_at(level: float, power: float) -> float:
    """The score of a gradient whose independent noise grows with a power of the level."""
    return 2 / (2 + (level / 0.1) ** power)


@pytest.mark.parametrize("target", [0.7, 0.9, 0.95, 0.97])
# measured: 1.7 for a bound to 3.3 for rms near a step of 1
@pytest.mark.parametrize("power", [1.7, 2, 2.6, 3.3])
def test_the_score_settles_at_the_target(target, power) -> None:
    controller = ScoreController(target=target, levels=LEVELS)
    level = LEVELS.start
    for _ in range(10):
        level = controller.next_level(level, score_at(level, power))
    assert abs(score_at(level, power) - target) < 0.0005


@pytest.mark.parametrize("power", [2, 2.6])
@pytest.mark.parametrize("first", [0.8, 0.9, 0.985, 0.99])
def test_two_updates_reach_the_target_without_overshooting_it(first, power) -> None:
    controller = ScoreController(target=0.95, levels=LEVELS)
    level = 0.1 * (2 / first - 2) ** (1 / power)
    for _ in range(2):
        level = controller.next_level(level, score_at(level, power))
        assert (score_at(level, power) - 0.95) * (first - 0.95) > -0.0005
    assert abs(score_at(level, power) - 0.95) < 0.005


@pytest.mark.parametrize("power", [1.7, 2, 2.6, 3.3])
@pytest.mark.parametrize("first", [0.5, 0.8, 0.99])
def test_four_updates_reach_the_target_for_all_measured_powers(first, power) -> None:
    controller = ScoreController(target=0.95, levels=LEVELS)
    level = 0.1 * (2 / first - 2) ** (1 / power)
    for _ in range(4):
        level = controller.next_level(level, score_at(level, power))
    assert abs(score_at(level, power) - 0.95) < 0.005


def test_one_update_meets_the_target_of_a_gradient_with_independent_noise() -> None:
    exact, noise = torch.randn(2, 1 << 18, generator=torch.Generator().manual_seed(0)).unbind()

    def measured(level: float) -> float:
        return gradient_similarity([exact], [exact + (level / 0.1) ** 1.25 * noise]).score

    controller = ScoreController(target=0.8, levels=LEVELS)
    for level in (0.05, 0.12):
        assert abs(measured(controller.next_level(level, measured(level))) - 0.8) < 0.005


def test_one_update_changes_the_level_by_at_most_a_factor_of_e() -> None:
    controller = ScoreController(target=0.9, levels=LEVELS)
    assert math.isclose(controller.next_level(0.01, 1.0), 0.01 * math.e)
    assert math.isclose(controller.next_level(0.01, -5.0), 0.01 / math.e)


def test_a_score_that_is_not_finite_makes_the_level_finer() -> None:
    controller = ScoreController(target=0.9, levels=LEVELS)
    assert controller.next_level(0.01, math.nan) < 0.01


def test_levels_stay_in_their_range() -> None:
    controller = ScoreController(target=0.9, levels=LEVELS)
    assert controller.next_level(0.5, 1.0) == 0.5
    assert controller.next_level(1e-4, 0.0) == 1e-4


def test_a_budget_is_met_and_the_level_does_not_swing() -> None:
    controller = BudgetController(budget_nbytes=1000, levels=LevelRange(0.03, 1e-4, 0.5))
    level, seen = 0.001, []
    for _ in range(20):
        # 2400 values, a bit less for each doubling
        held = round(2400 / 8 * (1 - math.log2(level)))
        seen.append(level)
        level = controller.next_level(level, held, 2400)
    assert len(set(seen[-8:])) == 1
    assert 2400 / 8 * (1 - math.log2(level)) <= 1000


def test_a_budget_below_the_coarsest_level_is_hopeless() -> None:
    controller = BudgetController(budget_nbytes=10, levels=LEVELS)
    assert controller.is_hopeless(0.5, 11)
    assert not controller.is_hopeless(0.25, 11)


@pytest.mark.parametrize("target", [0, 1, 1.5, -0.1, "high", True])
def test_targets_that_are_no_score_are_refused(target) -> None:
    with pytest.raises(SpecError, match="target_score"):
        ScoreController(target=target, levels=LEVELS)


@pytest.mark.parametrize("budget", [0, -1, 1.5, True])
def test_budgets_that_are_no_bytes_are_refused(budget) -> None:
    with pytest.raises(SpecError, match="budget_bytes"):
        BudgetController(budget_nbytes=budget, levels=LEVELS)
