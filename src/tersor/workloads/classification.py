"""How good predicted classes are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from tersor.workloads.training.judgement import Metric

CLASS_METRICS: Final = (
    Metric("accuracy", higher_is_better=True),
    Metric("loss", higher_is_better=False),
)
"""By which trainings on classes are judged."""


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """Quality of predictions on a set of samples.

    Attributes:
        accuracy: share of samples whose class has the highest logit.
        loss: mean negative log-likelihood of the class, in nats.
        num_samples: how many there were.
    """

    accuracy: float
    loss: float
    num_samples: int

    @classmethod
    def of(cls, sums: torch.Tensor) -> ClassMetrics:
        """Judge what ``class_sums`` of all samples add up to."""
        num_right, loss, count = sums.tolist()
        return cls(num_right / count, loss / count, round(count))

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def class_sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return how many predictions are right, the sum of losses, and how many there are, float64 [3].

    Of several batches they add up.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> ClassMetrics.of(class_sums(logits, torch.tensor([0, 1]))).accuracy
        0.5
    """
    logits = logits.double()
    right = (logits.argmax(1) == labels).sum().double()
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    return torch.stack([right, loss, torch.full_like(loss, len(labels))])
