"""Schedules and codec choice that more than one site uses."""

from tersor.policy.choice import Choice, Trial, choose, estimate, predicted_speedup
from tersor.policy.decay import Decay

__all__ = ["Choice", "Decay", "Trial", "choose", "estimate", "predicted_speedup"]
