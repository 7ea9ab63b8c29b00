"""Which bound and which codec, and when."""

from tersor.policy.bounds import AdaptiveBounds
from tersor.policy.choice import Choice, Trial, choose, predicted_speedup
from tersor.policy.decay import Decay
from tersor.policy.tables import ClassBounds, Classification, TableStats, classify

__all__ = [
    "AdaptiveBounds",
    "Choice",
    "ClassBounds",
    "Classification",
    "Decay",
    "TableStats",
    "Trial",
    "choose",
    "classify",
    "predicted_speedup",
]
