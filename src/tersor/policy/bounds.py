"""The bound of every table at every iteration: table-wise classes times iteration-wise decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tersor.errors import SpecError
from tersor.policy.decay import Decay
from tersor.policy.tables import ClassBounds, Classification, TableClass, classify
from tersor.types import Bound


@dataclass(frozen=True, slots=True)
class AdaptiveBounds:
    """Relative bounds per table and iteration.

    Attributes:
        tight: numbers of the tables with the tight bound.
        loose: numbers of those with the loose one; all others have the base bound.
        bounds: the final bound of each class.
        decay: how much looser bounds are early on.

    Example:
        >>> policy = AdaptiveBounds(tight=frozenset({2}), decay=Decay("linear", 2.0, 100))
        >>> policy.bound(2, iteration=50), policy.bound(0, iteration=100)
        (Bound(kind='relative', value=0.015), Bound(kind='relative', value=0.03))
    """

    tight: frozenset[int] = frozenset()
    loose: frozenset[int] = frozenset()
    bounds: ClassBounds = field(default_factory=ClassBounds)
    decay: Decay = field(default_factory=Decay)

    def __post_init__(self) -> None:
        """Take any collection of table numbers; refuse a table in two classes."""
        for name in ("tight", "loose"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        both = self.tight & self.loose
        if both:
            raise SpecError(f"table {min(both)} is both tight and loose; leave it in one list")

    @classmethod
    def from_sample(
        cls,
        samples: Sequence[torch.Tensor],
        num_rows: Sequence[int] | None = None,
        *,
        bounds: ClassBounds | None = None,
        decay: Decay | None = None,
    ) -> AdaptiveBounds:
        """Find the classes from one batch of look-ups per table; see ``tables.classify``."""
        bounds = bounds or ClassBounds()
        return cls.from_classes(classify(samples, num_rows, bounds), bounds=bounds, decay=decay)

    @classmethod
    def from_classes(
        cls,
        classes: Iterable[Classification],
        *,
        bounds: ClassBounds | None = None,
        decay: Decay | None = None,
    ) -> AdaptiveBounds:
        """Take classes that were found before."""
        named = {found.stats.table: found.table_class for found in classes}
        return cls(
            tight=frozenset(table for table, name in named.items() if name == "tight"),
            loose=frozenset(table for table, name in named.items() if name == "loose"),
            bounds=bounds or ClassBounds(),
            decay=decay or Decay(),
        )

    def table_class(self, table: int) -> TableClass:
        """Return the class of a table."""
        if table in self.tight:
            return "tight"
        return "loose" if table in self.loose else "base"

    def bound(self, table: int, iteration: int) -> Bound:
        """Return the bound for a table's look-ups at an iteration, counted from 0."""
        final = self.bounds.of(self.table_class(table))
        return Bound.relative(final * self.decay.factor(iteration))


def _numbers(name: str, tables: Any) -> frozenset[int]:
    if isinstance(tables, str) or not isinstance(tables, Iterable):
        raise SpecError(f"{name} tables are a list of table numbers, not {tables!r}")
    found = frozenset(tables)
    if any(isinstance(table, bool) or not isinstance(table, int) or table < 0 for table in found):
        raise SpecError(f"{name} tables are numbered from 0, not {sorted(map(str, found))}")
    return found
