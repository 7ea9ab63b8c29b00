"""Quality metrics of predicted tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from tersor.workloads.training.judgement import Metric

GPT_METRICS: Final = (Metric("loss", higher_is_better=False),)
"""Metrics for comparing trainings on texts."""


@dataclass(frozen=True, slots=True)
class GptMetrics:
    """Quality of predictions on a validation text.

    Attributes:
        loss: mean negative log-likelihood of a token, in nats.
        num_tokens: number of predicted tokens.
    """

    loss: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite if it overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"loss": self.loss, "perplexity": self.perplexity, "num_tokens": self.num_tokens}
