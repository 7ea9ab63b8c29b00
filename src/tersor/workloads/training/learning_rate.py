"""Learning rates as pure functions of the step, so a resumed run needs no state for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from tersor.errors import SpecError

SHAPES: Final = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True)
class LearningRate:
    """A rate that grows to its peak during the warm-up, and then falls to its final value.

    Attributes:
        peak: the largest rate.
        shape: of the decay after the warm-up.
        warmup: steps of linear growth before the peak; 0 for none.
        end: step from which on the rate is ``final``.
        final: rate at the end of the decay.

    Example:
        >>> rate = LearningRate(1.0, "cosine", warmup=2, end=6, final=0.2)
        >>> [round(rate.at(step), 3) for step in range(7)]
        [0.5, 1.0, 1.0, 0.883, 0.6, 0.317, 0.2]
    """

    peak: float
    shape: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    end: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        """Validate the fields."""
        if self.shape not in SHAPES:
            raise SpecError(f"a learning rate falls by one of {', '.join(SHAPES)}")
        if not self.peak > 0 or self.final < 0 or self.warmup < 0:
            raise SpecError(f"{self} must have a peak above 0, and nothing below 0")
        if self.shape != "constant" and self.end <= self.warmup:
            steps = "1 step" if self.warmup == 1 else f"{self.warmup} steps"
            raise SpecError(f"the learning rate must end after its warm-up of {steps}")

    @property
    def is_constant(self) -> bool:
        """True if every step has the same rate."""
        return self.shape == "constant" and self.warmup < 2

    def at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.shape == "constant":
            return self.peak
        part = min(1.0, (step - self.warmup) / (self.end - self.warmup))
        left = 1.0 - part if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * part))
        return self.final + (self.peak - self.final) * left
