"""Axes: which numbers lie where, and which of them are written down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

_ROOM = 0.05
_MOST = 1e300


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from ``low`` to ``high``, placed from ``start`` to ``end``, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    @classmethod
    def spanning(
        cls, values: Iterable[float], start: float, end: float, *, is_log: bool = False
    ) -> Self:
        """Return a scale with a little room around the values, of which there is at least one."""
        places = [math.log10(value) if is_log else value for value in values]
        low, high = min(places), max(places)
        room = (high - low) * _ROOM or (0.15 if is_log else abs(high) * _ROOM or 1.0)
        low, high = low - room, high + room
        return cls(10**low, 10**high, start, end, True) if is_log else cls(low, high, start, end)

    def holds(self, value: float) -> bool:
        """Whether a number lies on the axis."""
        return can_hold(value, is_log=self.is_log) and self.low <= value <= self.high

    def at(self, value: float) -> float:
        """Return where a number lies."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return a few round numbers on the axis."""
        if self.is_log:
            found = self._log_ticks()
            if len(found) >= 2:
                return found
        return linear_ticks(self.low, self.high)

    def _log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, math.ceil((last - first) / 7))
        decades = range(first, last + 1)
        for digits in ((1,), (1, 3), (1, 2, 5)):
            step = every if digits == (1,) else 1
            found = [d * 10.0**e for e in decades if e % step == 0 for d in digits]
            found = [tick for tick in found if self.low <= tick <= self.high]
            if len(found) >= 3:
                break
        return found


def can_hold(value: float, *, is_log: bool) -> bool:
    """Whether an axis could show a number; the room around it must have one, too."""
    return abs(value) < _MOST and (value > 1 / _MOST or not is_log)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers within a range."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(k for k in (1, 2, 5, 10) if span / (step * k) <= 6)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def number_label(value: float) -> str:
    """Return a number as an axis shows it.

    Example:
        >>> [number_label(value) for value in (0, 0.03, 0.00001, 12345.0, 2.5)]
        ['0', '0.03', '1e-5', '12,345', '2.5']
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}".replace("e+0", "e")
    return f"{value:.4g}".replace("e-0", "e-")


def widest(labels: Sequence[str]) -> int:
    """Return the most characters of any label."""
    return max((len(label) for label in labels), default=0)
