"""Options and state of a training's compression of tensors saved for backward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from tersor.errors import SpecError
from tersor.policy import Similarity
from tersor.sites.activations import Compression
from tersor.sites.activations.balance import Parts, checked_parts
from tersor.types import Bound

_FIRST_BALANCE: Final = 50
"""Steps before the parts of a model are first compared: weights that have learned nothing would say little."""
PROBE_EVERY: Final = 50
"""Usual steps between probes."""
_PROBED_FRACTION: Final = 8
"""A probe takes this part of a batch: its exact pass then saves about as much as a whole batch holds compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOptions:
    """How saved tensors are compressed.

    At most one of ``step``, ``bound``, ``target_score`` and ``budget_nbytes`` sets the precision.

    Attributes:
        codec: ``"auto"`` or the id of a codec.
        step: of ``rms``, in units of the root mean square of 256 values.
        bound: relative bound on the error of every value.
        target_score: gradient similarity that step or bound is controlled to reach.
        budget_nbytes: budget for the held tensors.
        probe_every: steps between probes, which measure the score; 0 for none.
    """

    codec: str = "auto"
    step: float | None = None
    bound: float | None = None
    target_score: float | None = None
    budget_nbytes: int | None = None
    probe_every: int = 0

    def __post_init__(self) -> None:
        """Validate by the rules of the site, before a model is created."""
        if type(self.probe_every) is not int or self.probe_every < 0:
            raise SpecError(
                f"probe_every must be a whole number of steps, or 0 for no probe, not {self.probe_every!r}"
            )
        self.compression()

    def compression(self) -> Compression:
        """Return a new context for the forward passes of a training.

        Raises:
            SpecError: several options set the precision, or the codec does not support the option.
            UnknownCodecError: there is no such codec.
        """
        return Compression(
            self.codec,
            step=self.step,
            bound=None if self.bound is None else Bound.relative(self.bound),
            target_score=self.target_score,
            budget_bytes=self.budget_nbytes,
        )

    def is_probe_due(self, step: int) -> bool:
        """True if the score is to be measured before a step; never before the first, as random weights say little."""
        return step > 0 and self.probe_every > 0 and step % self.probe_every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedActivations(ActivationOptions):
    """Compression in which parts of the model have levels of their own, balanced before steps 50, 100, 200 and so on.

    Attributes:
        parts: what has a level of its own; see ``Compression.balance``.
    """

    parts: Parts = "kind"

    def __post_init__(self) -> None:
        """Refuse also what has no common level."""
        # slots make a new class, which ``super()`` does not know
        ActivationOptions.__post_init__(self)
        checked_parts(self.parts)
        if self.compression().report().level is None:
            raise SpecError(
                "only step, target_score or budget_bytes can be balanced; leave parts out, or bound and the codec"
            )

    def check_steps(self, steps: int) -> None:
        """Refuse a training that ends before the first balance.

        Raises:
            SpecError: it does.
        """
        if steps <= _FIRST_BALANCE:
            raise SpecError(
                f"activations are first balanced after {_FIRST_BALANCE} steps, and this training ends after {steps}; "
                "train for longer, or leave the balance out"
            )

    def is_due(self, step: int) -> bool:
        """True if the parts are to be compared before a step."""
        number, rest = divmod(step, _FIRST_BALANCE)
        return number > 0 and not rest and number & (number - 1) == 0

    def is_probe_due(self, step: int) -> bool:
        """True if the score is to be measured before a step, and no balance does so."""
        return ActivationOptions.is_probe_due(self, step) and not self.is_due(step)


def num_probed(count: int, least: int = 1) -> int:
    """Return how many of ``count`` samples a probe takes: an eighth, but at least ``least`` if there are as many.

    Example:
        >>> num_probed(128), num_probed(3), num_probed(16, least=4), num_probed(3, least=4)
        (16, 1, 4, 3)
    """
    return min(count, max(least, count // _PROBED_FRACTION))


def activation_values(compression: Compression) -> dict[str, float]:
    """Return the log values of the last step: ratio and level (step or bound), score and the level that was scored."""
    report = compression.report()
    found = {"activation_ratio": report.ratio}
    if report.level is not None:
        found["activation_level"] = report.level
    if report.similarity is not None:
        found["score"] = report.similarity.score
    if report.similarity_level is not None:
        found["score_level"] = report.similarity_level
    return found


def balance_values(compression: Compression, factors: Mapping[str, float]) -> dict[str, float]:
    """Return the log values of a balance: number and range of its factors, and the score with them."""
    # a balance ends with a probe
    similarity = cast("Similarity", compression.report().similarity)
    values = factors.values()
    return {
        "num_parts": len(factors),
        "least_factor": min(values, default=1.0),
        "largest_factor": max(values, default=1.0),
        "score": similarity.score,
    }


def probe_values(compression: Compression) -> dict[str, float]:
    """Return the log values of a probe: what it measured, the level that it scored, and the one that it led to."""
    report = compression.report()
    values: dict[str, float] = cast("Similarity", report.similarity)._asdict()
    if report.similarity_level is not None and report.level is not None:
        values |= {"score_level": report.similarity_level, "activation_level": report.level}
    return values


def json_tensor(value: object) -> torch.Tensor:
    """Return a JSON value for a checkpoint, as a uint8 tensor."""
    return torch.tensor(list(json.dumps(value, sort_keys=True).encode()), dtype=torch.uint8)


def json_of(tensor: torch.Tensor) -> Any:
    """Return the value of a tensor of ``json_tensor``."""
    return json.loads(bytes(tensor.tolist()))


def load_compression_state(compression: Compression, state: torch.Tensor | None) -> None:
    """Restore a state of a compression from a checkpoint.

    Raises:
        SpecError: the state is None, or from other options.
    """
    if state is None:
        raise SpecError("the checkpoint has no state of compressed activations; start another run")
    compression.load_state_dict(json_of(state))
