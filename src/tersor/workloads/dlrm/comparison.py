"""Data for comparisons of DLRM trainings: exchanged bytes, and classes of the tables."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tersor.sites.embeddings import ClassBounds, Classification, Volume, classify
from tersor.workloads.data.clicks import ClickSource
from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.models.dlrm import Dlrm
from tersor.workloads.training.judgement import Outcome


@dataclass(frozen=True, slots=True)
class DlrmOutcome(Outcome):
    """The outcome of one run, and the volume of its exchanges over all ranks.

    Attributes:
        directions: per direction, the bytes and the seconds of each phase on the slowest rank.
        tables: forward bytes per table.
    """

    directions: dict[str, tuple[Volume, dict[str, float]]] = field(default_factory=dict)
    tables: dict[int, Volume] = field(default_factory=dict)

    def exchange_s(self) -> float:
        """Return the seconds per step that the slowest rank spent in exchanges, in both directions."""
        return sum(sum(times.values()) for _, times in self.directions.values()) / max(
            1, self.steps
        )

    def volume(self, direction: str) -> Volume:
        """Return the bytes of a direction."""
        return self.directions[direction][0]


def sample_classes(
    config: DlrmConfig, source: ClickSource, bounds: ClassBounds | None = None
) -> list[Classification]:
    """Classify the tables of a model by the rows that its first batch looks up."""
    model = Dlrm(config.shape, range(len(config.shape.num_rows)), config.seed)
    batch = source.read("train", 0, min(config.batch, source.num_samples("train")))
    with torch.no_grad():
        return classify(model.look_up(batch.ids), config.shape.num_rows, bounds)
