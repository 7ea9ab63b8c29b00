"""How a training compresses the tensors that its forward pass saves for backward, if it does."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch

from tersor.errors import SpecError
from tersor.sites.activations import Compression
from tersor.types import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOptions:
    """At most one of ``step``, ``bound``, ``target_score`` and ``budget_nbytes`` says how exactly.

    Attributes:
        codec: ``"auto"`` or the id of a codec.
        step: of ``rms``, in units of the root mean square of 256 values.
        bound: relative, of the error of every value.
        target_score: similarity of gradients that step or bound are steered to.
        budget_nbytes: that held tensors are to fit in.
    """

    codec: str = "auto"
    step: float | None = None
    bound: float | None = None
    target_score: float | None = None
    budget_nbytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the site would refuse, before a model is made."""
        self.compression()

    def compression(self) -> Compression:
        """Return a new context for the forward passes of a training.

        Raises:
            SpecError: two ways to say how exactly were given, or the codec cannot be set so.
            UnknownCodecError: there is no such codec.
        """
        return Compression(
            self.codec,
            step=self.step,
            bound=None if self.bound is None else Bound.relative(self.bound),
            target_score=self.target_score,
            budget_bytes=self.budget_nbytes,
        )


def activation_values(compression: Compression) -> dict[str, float]:
    """Return what a line of a log says: ratio and step or bound of the last step, score and the step or bound that it is of."""
    report = compression.report()
    found = {"activation_ratio": report.ratio}
    if report.level is not None:
        found["activation_level"] = report.level
    if report.similarity is not None:
        found["score"] = report.similarity.score
    if report.similarity_level is not None:
        found["score_level"] = report.similarity_level
    return found


def compression_state(compression: Compression) -> torch.Tensor:
    """Return the state of a compression as a checkpoint has it, uint8."""
    text = json.dumps(compression.state_dict(), sort_keys=True)
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def load_compression_state(compression: Compression, state: torch.Tensor | None) -> None:
    """Go on where a state was taken.

    Raises:
        SpecError: there is none, or it is of other options.
    """
    if state is None:
        raise SpecError("the checkpoint has no state of compressed activations; start another run")
    compression.load_state_dict(json.loads(bytes(state.tolist())))
