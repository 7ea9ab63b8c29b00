"""What measurements say between and beyond themselves: times as lines, ratios as curves."""

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
    """Return the factors, none below 0, whose sum of columns comes closest to ``values``.

    The sum of ``((fitted - value) / scale)**2`` is the least of all; of equal ones the earlier
    columns are taken. Costs are never negative, and a negative one would be believed far from the
    measurements. ``scipy.optimize.nnls`` promises nothing about equal ones, and is no dependency.

    Args:
        columns: per factor, as many numbers as there are values; a handful of columns.
        values: what was measured.
        scales: what an error of 1 means; the values themselves make errors relative.
    """
    matrix = np.array(columns, dtype=float).T / np.array(scales, dtype=float)[:, None]
    target = np.array(values, dtype=float) / np.array(scales, dtype=float)
    least, best = float(target @ target), [0.0] * len(columns)
    # errors below this are rounding: of two perfect fits the earlier columns count
    noise = 1e-24 * least
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            factors, _, rank, _ = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)
            error = float(np.sum((matrix[:, chosen] @ factors - target) ** 2))
            # a column that repeats the others tells nothing more
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
    """Fit measured times by how often the seconds of links at full speed, and by other costs.

    Args:
        links_s: seconds at full speed, a column for each way of using a link.
        columns: amounts of the other costs.
        values: seconds that were measured.

    Returns:
        The factors of ``links_s``, 1 at least, and those of ``columns``; errors are relative, as of
        ``nonnegative_fit``. Links come first: where there is one link only, a cost per byte cannot be
        told from it.
    """
    pinned: set[int] = set()
    while True:
        free = [k for k in range(len(links_s)) if k not in pinned]
        # nothing is faster than its link: the other costs are fitted to what full speed leaves
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
        """Return the seconds of an amount."""
        return self.fixed_s + self.each_s * amount

    @classmethod
    def fit(
        cls, points: Iterable[tuple[float, float]], scales: Sequence[float] | None = None
    ) -> Self:
        """Fit (amount, seconds) by least squares of relative errors, or of those over ``scales``.

        Where amounts are not four times apart, nothing is known of the fixed part and it is 0: noise
        would make one, and a speed beyond belief with it.
        """
        amounts, seconds = zip(*points, strict=True)
        ones = [1.0 if max(amounts) >= _APART * min(amounts) else 0.0] * len(amounts)
        if scales is None:
            scales = [max(s, 1e-9) for s in seconds]
        each, fixed = nonnegative_fit([amounts, ones], seconds, scales)
        return cls(fixed, each)


@dataclass(frozen=True, slots=True)
class RatioCurve:
    """Original over encoded bytes by the rows of a slice: what one rank sends another of a table.

    Between measurements the logarithm of the ratio is a line in the logarithm of the rows. With
    fewer rows the line of the first two goes on; with more the last ratio stays, which promises
    too little rather than too much where rows repeat.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Refuse an empty curve."""
        if not self.points:
            raise SpecError("a ratio needs at least one measurement")

    @classmethod
    def of(cls, ratios: Mapping[float, float]) -> Self:
        """Make a curve from the ratio at each number of rows."""
        return cls(tuple(sorted(ratios.items())))

    @classmethod
    def fixed(cls, ratio: float) -> Self:
        """Make the curve of a ratio that depends on nothing."""
        return cls(((1.0, ratio), (2.0, ratio)))

    @property
    def is_flat(self) -> bool:
        """Whether the ratio was the same everywhere: that of a fixed rate."""
        ratios = [ratio for _, ratio in self.points]
        return len(ratios) > 1 and max(ratios) <= 1.01 * min(ratios)

    def at(self, rows: float) -> float:
        """Return the ratio at a number of rows per slice."""
        if len(self.points) == 1 or rows >= self.points[-1][0]:
            return self.points[-1][1]
        k = max(1, bisect_left([x for x, _ in self.points], rows))
        (x0, y0), (x1, y1) = self.points[k - 1], self.points[k]
        slope = log(y1 / y0) / log(x1 / x0)
        return y0 * exp(slope * log(rows / x0))

    def is_beyond(self, rows: float) -> bool:
        """True if ``rows`` is outside what was measured, and that matters."""
        return not self.is_flat and not self.points[0][0] <= rows <= self.points[-1][0]
