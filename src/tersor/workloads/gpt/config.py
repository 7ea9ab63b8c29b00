"""Configuration of a training run of a GPT, as stored in logs and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tersor.errors import SpecError
from tersor.workloads.gpt.schemes import SCHEMES
from tersor.workloads.models.gpt import PRESETS, GptShape
from tersor.workloads.training.activations import ActivationOptions
from tersor.workloads.training.config import TrainingConfig, decay_difference
from tersor.workloads.training.learning_rate import LearningRate

DTYPES: Final = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig(TrainingConfig):
    """One training run.

    Attributes:
        shape: of the model.
        accumulation: number of sequential parts of a rank's share of a batch.
        dtype: compute dtype of the model. Weights, gradients between ranks and the optimizer's state are
            always float32.
        decay_steps: step at which the learning rate has decayed to a tenth of its peak; 0 for the last
            step. The first hundredth of these steps is the warm-up.
        scheme: how ranks exchange weights and gradients, a name of ``SCHEMES``.
        ranks: number of ranks simulated in one process; must be 1 under torchrun.
        ranks_per_node: node size of these ranks, or of the processes; 0 for the actual placement.
        activations: compression of tensors saved for backward; None to disable it.
    """

    shape: GptShape = PRESETS["2M"].shape
    batch: int = PRESETS["2M"].batch
    learning_rate: float = PRESETS["2M"].learning_rate
    accumulation: int = 1
    dtype: Literal["fp32", "bf16"] = "fp32"
    decay_steps: int = 0
    scheme: str = "exact"
    ranks: int = 1
    ranks_per_node: int = 0
    activations: ActivationOptions | None = None

    def __post_init__(self) -> None:
        """Validate the fields."""
        # not super(): slots=True replaces the class, and super() still refers to the original one
        TrainingConfig.__post_init__(self)
        self.check_types(ActivationOptions | None, "ActivationOptions", ("activations",))
        self.check_types(int, "a whole number", ("accumulation", "decay_steps"))
        self.check_types(GptShape, "a GptShape", ("shape",))
        if self.dtype not in DTYPES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        self.check_types(int, "a whole number", ("ranks", "ranks_per_node"))
        if self.scheme not in SCHEMES:
            raise SpecError(f"scheme must be one of {', '.join(SCHEMES)}, not {self.scheme!r}")
        # nodes of processes are checked once the number of processes is known
        self.check_nodes(self.ranks if self.ranks != 1 else max(1, self.ranks_per_node))
        if self.accumulation < 1 or self.decay_steps < 0:
            raise SpecError(
                f"accumulation={self.accumulation} with decay_steps={self.decay_steps} cannot be; "
                "give at least one part, and no negative number of steps"
            )

    def check_nodes(self, num_ranks: int) -> None:
        """Raise ``SpecError`` unless ``num_ranks`` is a multiple of ``ranks_per_node``."""
        if num_ranks < 1:
            raise SpecError(f"there must be at least one rank, not {num_ranks}")
        if self.ranks_per_node < 0 or num_ranks % (self.ranks_per_node or 1):
            raise SpecError(
                f"{num_ranks} ranks cannot be nodes of {self.ranks_per_node} each; give a number of ranks "
                "that the ranks of a node divide"
            )

    def rate(self) -> LearningRate:
        """Return the published schedule: a short warm-up, then a cosine down to a tenth."""
        end = max(1, self.decay_steps or self.steps)
        final = self.learning_rate / 10
        return LearningRate(self.learning_rate, "cosine", warmup=end // 100, end=end, final=final)

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, with a default ``decay_steps`` resolved to the number of steps."""
        return {**TrainingConfig.to_config(self), "decay_steps": self.decay_steps or self.steps}

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Describe how a saved run differs; if only in its learning-rate decay, how to keep that."""
        return decay_difference(self, saved)
