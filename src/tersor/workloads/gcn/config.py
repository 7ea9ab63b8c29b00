"""What a training run of a graph network is told, as it stands in logs and checkpoints."""

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
        batch: training nodes of a step; without ``fanouts`` a step takes all nodes that there are, and the
            batch must be the number of those to train on.
        model: a name of ``KINDS``.
        form: of the matrix that multiplies features: ``"csr"``, ``"matmul"`` or ``"linear"``.
        hidden: values between layers, of each of them.
        dropout: share of values that a layer does not see in training.
        weight_decay: of the first layer.
        fanouts: neighbours that a node draws, by layer; none for the whole graph in every step.
        activations: how tensors saved for backward are compressed; None: not at all.
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
        """Refuse what cannot be trained."""
        # not super(): a dataclass with slots is made anew, and super() knows the first one alone
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
