"""Control of a codec's coarseness, a single number, by a score or by a budget of bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tersor.errors import SpecError


@dataclass(frozen=True, slots=True)
class LevelRange:
    """The levels that a codec accepts; larger is coarser.

    Attributes:
        start: initial level of a controller.
        finest: smallest level.
        coarsest: largest level.
    """

    start: float
    finest: float
    coarsest: float

    def __post_init__(self) -> None:
        """Validate the fields."""
        if not 0 < self.finest <= self.start <= self.coarsest < math.inf:
            raise SpecError(f"levels must grow from finest over start to coarsest, not {self}")

    def clip(self, level: float) -> float:
        """Return the nearest level in the range."""
        return min(self.coarsest, max(self.finest, level))


_LEAST_SCORE: Final = 1e-3
"""Lower scores count as this one, which is far below every target."""
_POWER: Final = 2.5
"""Power of the level that noise is assumed to grow with. Measured on a ResNet and a GPT: 2.0 to 2.6 for ``rms`` (3.3
between steps of 1 and 1.4), 1.7 to 2.2 for a bound. Where the real power is p, an update leaves ``1 - p / 2.5`` of the
distance to the target, on a logarithmic scale; from 5 on, levels would oscillate without settling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreController:
    """Steers a level to a target score, by a factor between 1/e and e per update.

    Independent noise with ``n`` times the energy of the gradient gives a score of ``2 / (2 + n)``. The noise grows with a
    power of the level, so one measurement tells the level that has the noise of the target.

    Example:
        >>> controller = ScoreController(target=0.9, levels=LevelRange(0.03, 1e-4, 0.5))
        >>> controller.next_level(0.03, 0.9), round(controller.next_level(0.03, 0.0), 4)
        (0.03, 0.011)
    """

    target: float
    levels: LevelRange

    def __post_init__(self) -> None:
        """Require a target strictly between 0 and 1."""
        if type(self.target) not in (int, float) or not 0 < self.target < 1:
            raise SpecError(
                f"target_score must be above 0 and below 1, not {self.target!r}; 0.95 is a good one"
            )

    def next_level(self, level: float, score: float) -> float:
        """Return the next level, given the score at this one; a score that is not finite counts as 0."""
        noise = _noise_of(score if math.isfinite(score) else 0.0)
        exponent = math.log(_noise_of(self.target) / noise) / _POWER if noise else 1.0
        return self.levels.clip(level * math.exp(min(1.0, max(-1.0, exponent))))


def _noise_of(score: float) -> float:
    """Return half the energy of the noise in a gradient of this score, relative to that of the exact gradient."""
    return 1 / max(_LEAST_SCORE, min(1.0, score)) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetController:
    """Finds the finest level, in factors of 2, at which the held bytes fit a budget.

    Halving the level costs at most one more bit per value. The controller halves it only if that fits too,
    so the level does not oscillate.

    Example:
        >>> controller = BudgetController(budget_nbytes=1000, levels=LevelRange(0.5, 0.125, 2.0))
        >>> controller.next_level(0.5, held_nbytes=1200, num_values=4000)
        1.0
        >>> controller.next_level(0.5, held_nbytes=400, num_values=4000)
        0.25
        >>> controller.next_level(0.5, held_nbytes=600, num_values=4000)
        0.5
    """

    budget_nbytes: int
    levels: LevelRange

    def __post_init__(self) -> None:
        """Require a positive whole number of bytes."""
        if type(self.budget_nbytes) is not int or self.budget_nbytes < 1:
            raise SpecError(
                f"budget_bytes must be a whole number of bytes above 0, not {self.budget_nbytes!r}"
            )

    def next_level(self, level: float, held_nbytes: int, num_values: int) -> float:
        """Return the next level, after a step that held ``held_nbytes`` for ``num_values`` coded values."""
        if held_nbytes > self.budget_nbytes:
            return self.levels.clip(2 * level)
        if num_values and held_nbytes + num_values // 8 <= self.budget_nbytes:
            return self.levels.clip(level / 2)
        return level

    def is_hopeless(self, level: float, held_nbytes: int) -> bool:
        """True if even the coarsest level exceeds the budget."""
        return held_nbytes > self.budget_nbytes and level >= self.levels.coarsest
