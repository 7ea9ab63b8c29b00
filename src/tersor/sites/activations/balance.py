"""Parts of a network whose saved tensors have a level of their own, and how much each part costs.

A part is a kind of function, by the name of the function that saves (all inputs of ``batch_norm``), or a single tensor, by that name
and its number among the tensors saved for such functions in a forward pass (``batch_norm 3``).
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
"""What has a level of its own."""
PARTS: Final[tuple[str, ...]] = get_args(Parts)
Gradients = Mapping[str, torch.Tensor]
"""Gradients of weights, by name."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Factors of the common level.

    Attributes:
        parts: what has a factor.
        factors: by name of the part; every other has 1.
    """

    parts: Parts
    factors: Mapping[str, float]

    def __post_init__(self) -> None:
        """Refuse unknown kinds of parts, and factors that no level can be multiplied by."""
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
    def from_config(cls, config: Mapping[str, Any]) -> Balance:
        """Undo ``to_config``."""
        factors = {str(part): float(factor) for part, factor in config["factors"].items()}
        return cls(config["parts"], factors)


def checked_parts(parts: str) -> Parts:
    """Return ``parts``.

    Raises:
        SpecError: it is none of ``PARTS``.
    """
    if parts not in PARTS:
        raise SpecError(f"parts must be {' or '.join(map(repr, PARTS))}, not {parts!r}")
    return cast("Parts", parts)


class Balanced:
    """Gives the tensors of one forward pass their factors, in the order in which they are saved.

    Attributes:
        is_survey: True if tensors that belong to no part must stay exact.
    """

    is_survey = False

    def __init__(self, balance: Balance) -> None:
        """Start before the first tensor."""
        self._balance, self._numbers = balance, Counter[str]()

    def factor(self, function: str, numel: int) -> float | None:
        """Return the factor of the next tensor, which is saved for a function; None if it must stay exact."""
        del numel
        return self._balance.factors.get(self._part(function), 1.0)

    def _part(self, function: str) -> str:
        if self._balance.parts == "kind":
            return function
        self._numbers[function] += 1
        return f"{function} {self._numbers[function]}"


@dataclass(slots=True)
class Survey:
    """Forward passes in which a single part is lossy, or all are, at the common level.

    Attributes:
        parts: what is surveyed.
        only: the part that is lossy; None for all.
        num_values: that each part saves in a pass in which all are lossy.
    """

    parts: Parts
    only: str | None = None
    num_values: Counter[str] = field(default_factory=Counter)

    def begin_pass(self) -> Surveyed:
        """Return what one forward pass asks."""
        return Surveyed(self)


class Surveyed(Balanced):
    """Like ``Balanced`` for one pass of a survey."""

    is_survey = True

    def __init__(self, survey: Survey) -> None:
        super().__init__(Balance(survey.parts, {}))
        self._survey = survey

    def factor(self, function: str, numel: int) -> float | None:
        """Return 1, or None for a tensor that is to stay exact."""
        part, only = self._part(function), self._survey.only
        if only is None:
            self._survey.num_values[part] += numel
        return 1.0 if only in (None, part) else None


def surveyed_balance(
    parts: Parts, exact: Gradients, lossy_gradients: Callable[[Survey], Gradients]
) -> Balance:
    """Return the balance that follows from what each part alone does to the gradients.

    Errors of different parts are independent, so their losses add up: on a ResNet of 28 saved tensors and a GPT of 28, the
    sum of ``1 - score`` over the tensors, each alone, was 0.0402 and 0.0273, and that of all together 0.0400 and 0.0272.

    Args:
        parts: what gets a factor.
        exact: gradients without compression.
        lossy_gradients: those of a pass under a survey.

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
    return Balance(parts, {part: _rounded(factor) for part, factor in factors.items()})


def _rounded(factor: float) -> float:
    """Return the nearest power of the root of 2: a GPU encodes tensors of one level together, so there must be few levels."""
    return float(2 ** (round(2 * math.log2(factor)) / 2))


def _score(exact: Gradients, lossy: Gradients) -> float:
    common = [name for name in exact if name in lossy]
    return gradient_similarity([exact[k] for k in common], [lossy[k] for k in common]).score
