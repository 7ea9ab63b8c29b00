"""Configuration of a training run of a graph network, as stored in logs and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tersor.errors import SpecError
from tersor.workloads.models.gcn import FORMS, KINDS, Form
from tersor.workloads.training.activations import ActivationOptions
from tersor.workloads.training.config import TrainingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GcnConfig(TrainingConfig):
    """One training run.

    Attributes:
        batch: training nodes per step. Without ``fanouts`` a step computes the whole graph, and the batch
            must equal the number of training nodes.
        model: a name of ``KINDS``.
        form: of the matrix that multiplies features: ``"csr"``, ``"matmul"`` or ``"linear"``.
        hidden: width of each hidden layer.
        dropout: share of a layer's inputs that are dropped in training.
        weight_decay: of the first layer.
        fanouts: neighbours that a node draws, per layer; empty to use the whole graph in every step.
        activations: compression of tensors saved for backward; None to disable it.
    """

    learning_rate: float = 0.01
    steps: int = 200
    model: Literal["gcn", "sage"] = "gcn"
    form: Form = "csr"
    hidden: tuple[int, ...] = (16,)
    dropout: float = 0.5
    weight_decay: float = 5e-4
    fanouts: tuple[int, ...] = ()
    activations: ActivationOptions | None = None

    def __post_init__(self) -> None:
        """Validate the fields."""
        # not super(): slots=True replaces the class, and super() still refers to the original one
        TrainingConfig.__post_init__(self)
        self.check_types(ActivationOptions | None, "ActivationOptions", ("activations",))
        self.check_types(int | float, "a number", ("dropout", "weight_decay"))
        if self.model not in KINDS:
            raise SpecError(f"model must be one of {', '.join(KINDS)}, not {self.model!r}")
        if self.form not in FORMS:
            raise SpecError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}")
        if not self.weight_decay >= 0:
            raise SpecError(f"the weight decay must not be below 0, as {self.weight_decay} is")
        if self.fanouts and self.model != "sage":
            raise SpecError("drawn neighbours are GraphSAGE's; give model sage, or no fanouts")
        if self.fanouts and (len(self.fanouts) != len(self.hidden) + 1 or min(self.fanouts) < 1):
            raise SpecError(
                f"fanouts are a number above 0 for each of {len(self.hidden) + 1} layers, not "
                f"{self.fanouts}"
            )
