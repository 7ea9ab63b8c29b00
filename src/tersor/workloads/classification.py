"""Quality metrics of predicted classes."""

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
"""Metrics for comparing trainings of classifiers."""


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """Quality of predictions on a set of samples.

    Attributes:
        accuracy: share of samples whose class has the highest logit.
        loss: mean negative log-likelihood of the class, in nats.
        num_samples: number of samples.
    """

    accuracy: float
    loss: float
    num_samples: int

    @classmethod
    def of(cls, sums: torch.Tensor) -> ClassMetrics:
        """Compute the metrics from the sum of ``class_sums`` over all batches."""
        num_right, loss, count = sums.tolist()
        return cls(num_right / count, loss / count, round(count))

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def class_sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the number of correct predictions, the sum of losses, and the number of samples, float64 [3].

    The results of several batches can be added.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
        >>> ClassMetrics.of(class_sums(logits, torch.tensor([0, 1]))).accuracy
        0.5
    """
    logits = logits.double()
    right = (logits.argmax(1) == labels).sum().double()
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    return torch.stack([right, loss, torch.full_like(loss, len(labels))])
