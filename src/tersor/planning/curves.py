"""Interpolate and extrapolate measurements: times as lines, compression ratios as curves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from typing import Final, Self

import numpy as np

from tersor.errors import SpecError

_APART: Final = 4.0


def nonnegative_fit(
    columns: Sequence[Sequence[float]], values: Sequence[float], scales: Sequence[float]
) -> list[float]:
    """Return the nonnegative factors whose weighted sum of columns comes closest to ``values``.

    The factors minimise the sum of ``((fitted - value) / scale)**2``; ties go to the earlier columns.
    They are nonnegative because costs are, and because a negative cost extrapolates badly.
    ``scipy.optimize.nnls`` does not define how it breaks ties, and scipy is not a dependency.

    Args:
        columns: one column per factor, each as long as ``values``; only a handful of columns.
        values: the measurements.
        scales: the unit of each value's error; pass the values themselves for relative errors.
    """
    matrix = np.array(columns, dtype=float).T / np.array(scales, dtype=float)[:, None]
    target = np.array(values, dtype=float) / np.array(scales, dtype=float)
    least, best = float(target @ target), [0.0] * len(columns)
    # smaller differences are rounding errors: of two perfect fits, the earlier columns win
    noise = 1e-24 * least
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            factors, _, rank, _ = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)
            error = float(np.sum((matrix[:, chosen] @ factors - target) ** 2))
            # a linearly dependent column adds nothing
            if rank == size and min(factors) >= 0 and error < least * (1 - 1e-9) - noise:
                least, best = error, [0.0] * len(columns)
                for column, factor in zip(chosen, factors, strict=True):
                    best[column] = float(factor)
    return best


def link_fit(
    links_s: Sequence[Sequence[float]],
    columns: Sequence[Sequence[float]],
    values: Sequence[float],
) -> tuple[list[float], list[float]]:
    """Fit measured times as multiples of the links' times at full speed, plus other costs.

    The fit minimises relative errors with ``nonnegative_fit``. Links take precedence over the other
    columns: with a single link, a cost per byte is indistinguishable from a slower link.

    Args:
        links_s: seconds at full speed, one column for each use of a link.
        columns: amounts of the other costs.
        values: measured seconds.

    Returns:
        The factors of ``links_s``, each at least 1, and the factors of ``columns``.
    """
    pinned: set[int] = set()
    while True:
        free = [k for k in range(len(links_s)) if k not in pinned]
        # nothing is faster than its link: fit the other costs to what full-speed links leave over
        left = [x - sum(links_s[k][i] for k in pinned) for i, x in enumerate(values)]
        found = nonnegative_fit([*(links_s[k] for k in free), *columns], left, values)
        slowdowns = dict(zip(free, found, strict=False))
        below = {k for k, factor in slowdowns.items() if factor < 1.0}
        if not below:
            return [slowdowns.get(k, 1.0) for k in range(len(links_s))], found[len(free) :]
        pinned |= below


@dataclass(frozen=True, slots=True)
class Line:
    """A cost of ``fixed_s`` seconds per call and ``each_s`` per byte (or sample)."""

    fixed_s: float = 0.0
    each_s: float = 0.0

    def at(self, amount: float) -> float:
        """Return the seconds that ``amount`` bytes (or samples) take."""
        return self.fixed_s + self.each_s * amount

    @classmethod
    def fit(
        cls, points: Iterable[tuple[float, float]], scales: Sequence[float] | None = None
    ) -> Self:
        """Fit (amount, seconds) points by least squares of relative errors, or of errors / ``scales``.

        If the largest amount is less than four times the smallest, the fixed part is 0. Such points
        do not determine it, and noise would produce a fixed part and an implausible speed.
        """
        amounts, seconds = zip(*points, strict=True)
        ones = [1.0 if max(amounts) >= _APART * min(amounts) else 0.0] * len(amounts)
        if scales is None:
            scales = [max(s, 1e-9) for s in seconds]
        each, fixed = nonnegative_fit([amounts, ones], seconds, scales)
        return cls(fixed, each)


@dataclass(frozen=True, slots=True)
class RatioCurve:
    """The ratio of original to encoded bytes as a function of the rows in a slice.

    A slice is the part of a table that one rank sends to another. The curve interpolates linearly
    between measurements, on logarithmic axes. Below the first measurement it extends the first
    segment. Beyond the last it stays constant, which underestimates the ratio where rows repeat.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Reject an empty curve."""
        if not self.points:
            raise SpecError("a ratio needs at least one measurement")

    @classmethod
    def of(cls, ratios: Mapping[float, float]) -> Self:
        """Build a curve from the ratio at each number of rows."""
        return cls(tuple(sorted(ratios.items())))

    @classmethod
    def fixed(cls, ratio: float) -> Self:
        """Build a constant curve."""
        return cls(((1.0, ratio), (2.0, ratio)))

    @property
    def is_flat(self) -> bool:
        """True if all of several measurements agree within 1%, as those of a fixed-rate codec do."""
        ratios = [ratio for _, ratio in self.points]
        return len(ratios) > 1 and max(ratios) <= 1.01 * min(ratios)

    def at(self, rows: float) -> float:
        """Return the ratio for slices of ``rows`` rows."""
        if len(self.points) == 1 or rows >= self.points[-1][0]:
            return self.points[-1][1]
        k = max(1, bisect_left([x for x, _ in self.points], rows))
        (x0, y0), (x1, y1) = self.points[k - 1], self.points[k]
        slope = log(y1 / y0) / log(x1 / x0)
        return y0 * exp(slope * log(rows / x0))

    def is_extrapolated(self, rows: float) -> bool:
        """Return True if ``rows`` is outside the measured range of a curve that is not flat."""
        return not self.is_flat and not self.points[0][0] <= rows <= self.points[-1][0]
