"""A training of a few lines, as one written from CONTRIBUTING.md: it guesses a line through points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tersor.workloads.training.config import TrainingConfig
from tersor.workloads.training.learning_rate import LearningRate
from tersor.workloads.training.run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig(TrainingConfig):
    """``dropout`` is the share of inputs that a step does not see."""

    dropout: float = 0.5


@dataclass(frozen=True, slots=True)
class ToyMetrics:
    """Mean squared error on the test points."""

    error: float

    def to_config(self) -> dict[str, Any]:
        return {"error": self.error}


class ToyRun(TrainingRun[torch.Tensor, ToyMetrics]):
    """Learns to add four numbers, some of which are dropped at random."""

    config: ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config, "points")
        torch.manual_seed(config.seed)
        self.model = torch.nn.Sequential(torch.nn.Dropout(config.dropout), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        rate = config.learning_rate
        self.learning_rate = LearningRate(rate, "cosine", warmup=2, end=max(3, config.steps))

    def batch(self, step: int) -> torch.Tensor:
        return torch.rand(self.config.batch, 4, generator=torch.Generator().manual_seed(step))

    def take_step(self, batch: torch.Tensor) -> float:
        loss = (self.model(batch).squeeze(1) - batch.sum(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def evaluate(self, max_samples: int | None = None) -> ToyMetrics:
        points = self.batch(-1)[:max_samples]
        self.model.eval()
        with torch.no_grad():
            found = self.model(points).squeeze(1)
        self.model.train()
        return ToyMetrics(float((found - points.sum(1)).square().mean()))
