"""Quality metrics of predicted click probabilities."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from tersor.errors import SpecError
from tersor.workloads.training.judgement import Metric

CLICK_METRICS: Final = (
    Metric("auc", higher_is_better=True),
    Metric("logloss", higher_is_better=False),
)
"""Metrics for comparing trainings on clicks."""


@dataclass(frozen=True, slots=True)
class ClickMetrics:
    """Quality of predictions on a set of samples.

    Attributes:
        auc: probability that a clicked sample is scored above one that is not; ties count half.
        logloss: mean negative log-likelihood in nats.
        accuracy: share of samples classified correctly at a threshold of one half.
        num_samples: number of samples.
    """

    auc: float
    logloss: float
    accuracy: float
    num_samples: int

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def click_metrics(logits: torch.Tensor, labels: torch.Tensor) -> ClickMetrics:
    """Compute the metrics of logits for labels of 0 and 1, in float64.

    Raises:
        SpecError: there are no logits, or the shapes differ.
    """
    if logits.numel() == 0 or logits.shape != labels.shape:
        raise SpecError(f"metrics need one logit per label, not {logits.shape} and {labels.shape}")
    scores, wanted = logits.double().cpu(), labels.double().cpu()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted)
    right = (scores > 0) == (wanted > 0.5)
    return ClickMetrics(
        auc=auc(scores, wanted),
        logloss=float(loss),
        accuracy=float(right.double().mean()),
        num_samples=logits.numel(),
    )


def auc(scores: torch.Tensor, weights: torch.Tensor) -> float:
    """Return the area under the ROC curve; NaN if all labels are equal.

    ``weights`` are labels, or probabilities of a click, which give the expected area. Scores equal to the
    true probabilities give the best area that any model can reach.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
        0.75
    """
    scores, positive = scores.double().view(-1), weights.double().view(-1)
    _, group = torch.unique(scores, return_inverse=True)
    num_groups = int(group.max()) + 1
    clicks = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, group, positive)
    others = torch.zeros(num_groups, dtype=torch.float64).index_add_(0, group, 1.0 - positive)
    below = others.cumsum(0) - others
    pairs = float(clicks.sum()) * float(others.sum())
    return float((clicks * (below + 0.5 * others)).sum()) / pairs if pairs else math.nan
