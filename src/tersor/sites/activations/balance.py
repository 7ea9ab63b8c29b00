"""Factors on the common level for parts of a network, from the loss of gradient similarity that each part causes.

A part is either a kind of function, named after the function that saves (``batch_norm``: all its inputs), or a single
tensor, named after the function and its number among the tensors saved for it in a forward pass (``batch_norm 3``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

import torch

from tersor.errors import SpecError
from tersor.policy import balanced_factors, gradient_similarity

Parts = Literal["kind", "tensor"]
"""What gets a factor: each kind of function, or each tensor."""
PARTS: Final[tuple[str, ...]] = get_args(Parts)
Gradients = Mapping[str, torch.Tensor]
"""Gradients of weights, by name."""


@dataclass(frozen=True, slots=True)
class LevelFactors:
    """Factors on the common level.

    Attributes:
        parts: what the factors are for.
        factors: factor by name of the part; parts without one have 1.
    """

    parts: Parts
    factors: Mapping[str, float]

    def __post_init__(self) -> None:
        """Require known kinds of parts, and positive finite factors."""
        checked_parts(self.parts)
        for part, factor in self.factors.items():
            if not 0 < factor < float("inf"):
                raise SpecError(
                    f"the factor of {part!r} must be above 0 and finite, not {factor!r}"
                )

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"parts": self.parts, "factors": dict(self.factors)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LevelFactors:
        """Make factors from the JSON form."""
        factors = {str(part): float(factor) for part, factor in config["factors"].items()}
        return cls(config["parts"], factors)


def checked_parts(parts: str) -> Parts:
    """Return ``parts`` if it is one of ``PARTS``.

    Raises:
        SpecError: it is not.
    """
    if parts not in PARTS:
        raise SpecError(f"parts must be {' or '.join(map(repr, PARTS))}, not {parts!r}")
    return cast("Parts", parts)


class PassFactors:
    """Gives the tensors of one forward pass their factors, in the order in which they are saved.

    Attributes:
        is_survey: True in a pass of a survey, in which tensors that belong to no part stay exact.
        num_tensors: tensors that have asked for a factor so far.
        num_known: of these, the tensors whose part has a factor.
    """

    is_survey = False

    def __init__(self, balance: LevelFactors) -> None:
        """Start before the first tensor."""
        self._balance, self._numbers = balance, Counter[str]()
        self.num_tensors = self.num_known = 0

    def factor(self, function: str, numel: int) -> float | None:
        """Return the factor for the next tensor saved for a function; None if it must stay exact."""
        del numel
        found = self._balance.factors.get(self._part(function))
        self.num_tensors += 1
        self.num_known += found is not None
        return 1.0 if found is None else found

    def _part(self, function: str) -> str:
        if self._balance.parts == "kind":
            return function
        self._numbers[function] += 1
        return f"{function} {self._numbers[function]}"


@dataclass(slots=True)
class Survey:
    """Forward passes at the common level in which one part is lossy, or all parts are.

    Attributes:
        parts: the kind of parts that are measured.
        only: the lossy part; None if all are lossy.
        num_values: number of values saved by each part, counted in passes in which all are lossy.
    """

    parts: Parts
    only: str | None = None
    num_values: Counter[str] = field(default_factory=Counter)

    def begin_pass(self) -> SurveyPass:
        """Return the factors of one forward pass."""
        return SurveyPass(self)


class SurveyPass(PassFactors):
    """``PassFactors`` for one pass of a survey."""

    is_survey = True

    def __init__(self, survey: Survey) -> None:
        super().__init__(LevelFactors(survey.parts, {}))
        self._survey = survey

    def factor(self, function: str, numel: int) -> float | None:
        """Return 1 for a tensor of a lossy part, else None; count values if all parts are lossy."""
        part, only = self._part(function), self._survey.only
        if only is None:
            self._survey.num_values[part] += numel
        return 1.0 if only in (None, part) else None


def surveyed_balance(
    parts: Parts, exact: Gradients, lossy_gradients: Callable[[Survey], Gradients]
) -> LevelFactors:
    """Measure the loss ``1 - score`` of each part alone, and return the balance that follows (``balanced_factors``).

    Errors of different parts are independent, so their losses add up. For a ResNet and a GPT of 28 saved tensors each,
    the losses of single tensors added up to 0.0402 and 0.0273; all tensors together lost 0.0400 and 0.0272.

    Args:
        parts: what gets a factor.
        exact: gradients without compression.
        lossy_gradients: runs a pass under the given survey, and returns its gradients.

    Raises:
        SpecError: no tensor is lossy.
    """
    survey = Survey(parts)
    lossy_gradients(survey)
    num_values = dict(survey.num_values)
    if not num_values:
        raise SpecError(
            "the forward pass saves no tensor that may be lossy; there is nothing to balance"
        )
    losses = {}
    for part in num_values:
        survey.only = part
        losses[part] = 1 - _score(exact, lossy_gradients(survey))
    factors = balanced_factors(losses, num_values)
    return LevelFactors(parts, {part: _rounded(factor) for part, factor in factors.items()})


def _rounded(factor: float) -> float:
    """Round to a power of sqrt(2): a GPU encodes tensors of one level together, so there must be few levels."""
    return float(2 ** (round(2 * math.log2(factor)) / 2))


def _score(exact: Gradients, lossy: Gradients) -> float:
    common = [name for name in exact if name in lossy]
    return gradient_similarity([exact[k] for k in common], [lossy[k] for k in common]).score
