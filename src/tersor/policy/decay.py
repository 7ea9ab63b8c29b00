"""Schedules for bounds that are loose early in training and tighten later."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tersor.errors import SpecError

Shape = Literal["step", "linear", "log", "constant"]
SHAPES: Final = get_args(Shape)
_STAIRS: Final = 10


@dataclass(frozen=True, slots=True)
class Decay:
    """A schedule of the factor by which a bound exceeds its final value.

    All shapes start at ``magnitude`` and give 1 from iteration ``end`` on. In between, ``linear``
    falls evenly, ``log`` falls faster at first, ``step`` follows ``linear`` in ten stairs, and
    ``constant`` does not fall.

    Attributes:
        shape: one of ``SHAPES``.
        magnitude: factor at the start, at least 1.
        end: first iteration at the final bound; 0 turns decay off.

    Example:
        >>> decay = Decay("step", magnitude=2.0, end=100)
        >>> [decay.factor(iteration) for iteration in (0, 10, 50, 100)]
        [2.0, 1.9, 1.5, 1.0]
    """

    shape: Shape = "step"
    magnitude: float = 2.0
    end: int = 65_536

    def __post_init__(self) -> None:
        """Validate the fields."""
        if self.shape not in SHAPES:
            raise SpecError(f"decay must be one of {', '.join(SHAPES)}, not {self.shape!r}")
        if type(self.magnitude) not in (int, float) or not 1 <= self.magnitude < math.inf:
            raise SpecError(f"the magnitude of a decay must be at least 1, not {self.magnitude!r}")
        if type(self.end) is not int or self.end < 0:
            raise SpecError(f"a decay ends at an iteration of at least 0, not {self.end!r}")

    @classmethod
    def off(cls) -> Decay:
        """Return the decay that leaves every bound unchanged."""
        return cls("constant", 1.0, 0)

    def factor(self, iteration: int) -> float:
        """Return the factor on the final bound, from ``magnitude`` down to 1."""
        if iteration < 0:
            raise SpecError(f"iterations count from 0, not {iteration}")
        if iteration >= self.end:
            return 1.0
        passed = iteration / self.end
        lost = 1.0 - 1.0 / self.magnitude
        if self.shape == "linear":
            return self.magnitude * (1.0 - passed * lost)
        if self.shape == "log":
            left = 1.0 - math.log(1.0 + passed * (math.e - 1.0))
            return self.magnitude * (left * lost + 1.0 / self.magnitude)
        if self.shape == "step":
            stair = _STAIRS * iteration // self.end
            return self.magnitude * max(1.0 - stair * lost / _STAIRS, 1.0 / self.magnitude)
        return self.magnitude
