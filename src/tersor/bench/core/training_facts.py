"""Facts in a result row about a whole training run."""

from __future__ import annotations

import math

from msgspec import Struct

from tersor.bench.core.activation_facts import SavedBytes
from tersor.bench.core.row_checks import Count, FromOne, require
from tersor.bench.core.timing import Seconds


class TrainingFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run: its length, its ranks and its loss curve.

    Attributes:
        data: name of the training data.
        seed: seed of weights and batches; runs with the same seed can be compared in pairs.
        steps: training steps.
        batch: samples of all ranks per step.
        num_ranks: ranks that train together.
        ranks_per_node: ranks per node among them.
        curve: (step, validation loss) points in order of steps; the last one is the result.
        step_s: median seconds of a step, including the exchanges between ranks.
        num_jobs: training runs that shared the machine at the same time.
        saved: what the last step saved for backward; None if saved tensors are not compressed.
    """

    data: str
    seed: Count
    steps: FromOne
    batch: FromOne
    num_ranks: FromOne
    ranks_per_node: FromOne
    curve: list[tuple[Count, float]]
    step_s: Seconds
    num_jobs: FromOne = 1
    saved: SavedBytes | None = None

    def __post_init__(self) -> None:
        """Reject a curve that is empty or has a loss that is not finite."""
        require("curve", bool(self.curve), "at least one point")
        require("curve", all(math.isfinite(loss) for _, loss in self.curve), "finite losses")

    @property
    def place(self) -> str:
        """Ranks and steps in words; training runs are comparable if they are the same."""
        return f"{self.num_ranks} ranks, {self.ranks_per_node} per node, {self.steps} steps of {self.batch}"
