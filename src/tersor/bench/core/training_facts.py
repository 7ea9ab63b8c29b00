"""What a result row says of a whole training."""

from __future__ import annotations

import math

from msgspec import Struct

from tersor.bench.core.activation_facts import SavedBytes
from tersor.bench.core.row_checks import Count, FromOne, require
from tersor.bench.core.timing import Seconds


class TrainingFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training: how long, on how many ranks, and how its loss fell.

    Attributes:
        data: name of what was trained on.
        seed: of weights and batches; trainings with the same one can be compared in pairs.
        steps: of the training.
        batch: samples of all ranks per step.
        num_ranks: that train together.
        ranks_per_node: of these.
        curve: (step, validation loss), in the order of steps; the last one is the result.
        step_s: median seconds of a step, with all that the ranks exchange.
        num_jobs: trainings that ran at the same time, and shared the machine.
        saved: what the last step saved for backward; None where saved tensors are not compressed.
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
        """Refuse curves that cannot be drawn."""
        require("curve", bool(self.curve), "at least one point")
        require("curve", all(math.isfinite(loss) for _, loss in self.curve), "finite losses")

    @property
    def place(self) -> str:
        """Ranks and steps in words: trainings can be compared where they are the same."""
        return f"{self.num_ranks} ranks, {self.ranks_per_node} per node, {self.steps} steps of {self.batch}"
