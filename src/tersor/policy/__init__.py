"""Schedules, controllers and codec selection shared by several sites."""

from tersor.policy.balance import balanced_factors
from tersor.policy.choice import Choice, Trial, choose, estimate, predicted_speedup
from tersor.policy.decay import Decay
from tersor.policy.level import BudgetController, LevelRange, ScoreController
from tersor.policy.similarity import Similarity, gradient_similarity, predicted_similarity

__all__ = [
    "BudgetController",
    "Choice",
    "Decay",
    "LevelRange",
    "ScoreController",
    "Similarity",
    "Trial",
    "balanced_factors",
    "choose",
    "estimate",
    "gradient_similarity",
    "predicted_similarity",
    "predicted_speedup",
]
