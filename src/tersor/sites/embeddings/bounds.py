"""The bound of each table at each iteration: the bound of its class times a decay factor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from tersor.comm import failure_announced, gathered, is_distributed
from tersor.errors import SpecError
from tersor.policy.decay import Decay
from tersor.sites.embeddings.classes import ClassBounds, Classification, TableClass, classify
from tersor.types import Bound


@dataclass(frozen=True, slots=True)
class AdaptiveBounds:
    """Bounds that depend on the table and the iteration.

    Attributes:
        tight: tables with the tight bound, by number or name.
        loose: tables with the loose bound, by number or name. All other tables have the base bound.
        bounds: the final bound of each class.
        decay: how much looser bounds are in early iterations.
        tables: final bounds of individual tables, which take precedence over their class; a number is a relative bound.

    Example:
        >>> policy = AdaptiveBounds(tight=frozenset({2}), decay=Decay("linear", 2.0, 100))
        >>> policy.bound(2, iteration=50), policy.bound(0, iteration=100)
        (Bound.relative(0.015), Bound.relative(0.03))
    """

    tight: frozenset[int | str] = frozenset()
    loose: frozenset[int | str] = frozenset()
    bounds: ClassBounds = field(default_factory=ClassBounds)
    decay: Decay = field(default_factory=Decay)
    tables: Mapping[int | str, Bound] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Normalise collections of tables; reject other types, and tables in two classes."""
        if not isinstance(self.bounds, ClassBounds):
            raise SpecError(
                f"bounds must be ClassBounds(tight, base, loose), not {self.bounds!r}; a single "
                "number for all tables is given to the exchange itself"
            )
        if not isinstance(self.decay, Decay):
            raise SpecError(
                f"decay must be a Decay, as in Decay('step', 2.0, 1000), not {self.decay!r}"
            )
        for name in ("tight", "loose"):
            object.__setattr__(self, name, _tables(name, getattr(self, name)))
        object.__setattr__(self, "tables", _bounds_by_table(self.tables))
        both = self.tight & self.loose
        if both:
            raise SpecError(
                f"table {min(both, key=str)} is both tight and loose; leave it in one list"
            )

    @classmethod
    def from_sample(
        cls,
        samples: Sequence[torch.Tensor] | Mapping[int | str, torch.Tensor],
        num_rows: Sequence[int] | Mapping[int | str, int] | None = None,
        *,
        bounds: ClassBounds | None = None,
        decay: Decay | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> AdaptiveBounds:
        """Determine the classes from one batch of look-ups per table; see ``classes.classify``.

        If ``torch.distributed`` is initialised, this is a collective call: each rank passes the tables that it owns,
        and all ranks receive the classes of all tables. A table that several ranks pass is tight if any of them finds
        it tight.

        Args:
            samples: looked-up rows, by table number or name, or of all tables in order.
            num_rows: number of rows of each of these tables; None if unknown.
            bounds: bounds of the classes.
            decay: decay of the bounds.
            group: the process group; None for all ranks.

        Raises:
            SpecError: on this rank or another, a sample is empty, or samples and row counts do not match.
        """
        bounds = ClassBounds() if bounds is None else bounds
        with failure_announced(group):
            _check_tables_are_known(samples, num_rows)
            found = classify(samples, num_rows, bounds)
        if is_distributed():
            found = _of_all_ranks(found, group, has_sizes=num_rows is not None)
        return cls.from_classes(found, bounds=bounds, decay=decay)

    @classmethod
    def from_classes(
        cls,
        classes: Iterable[Classification],
        *,
        bounds: ClassBounds | None = None,
        decay: Decay | None = None,
    ) -> AdaptiveBounds:
        """Create a policy from classes that were determined before."""
        named = {found.stats.table: found.table_class for found in classes}
        return cls(
            tight=frozenset(table for table, name in named.items() if name == "tight"),
            loose=frozenset(table for table, name in named.items() if name == "loose"),
            bounds=ClassBounds() if bounds is None else bounds,
            decay=Decay() if decay is None else decay,
        )

    def numbered(self, names: Sequence[str]) -> AdaptiveBounds:
        """Return the same policy with every table identified by its number.

        Args:
            names: names of all tables, in order.

        Raises:
            SpecError: a table does not exist, or has two bounds.
        """
        numbers = {name: number for number, name in enumerate(names)}

        def number(table: int | str) -> int:
            found = numbers.get(table, -1) if isinstance(table, str) else table
            if not 0 <= found < len(names):
                known = f"tables are numbered 0 to {len(names) - 1}"
                if any(name != str(k) for k, name in enumerate(names)):
                    known += f" and named {', '.join(names)}"
                elif isinstance(table, str):
                    known += "; give names= to name them"
                raise SpecError(f"bounds name table {table!r}, but {known}")
            return found

        tables: dict[int | str, Bound] = {
            number(table): bound for table, bound in self.tables.items()
        }
        if len(tables) < len(self.tables):
            raise SpecError("a table has two bounds, by number and by name; leave one of them")
        tight, loose = (frozenset(map(number, group)) for group in (self.tight, self.loose))
        return replace(self, tight=tight, loose=loose, tables=tables)

    def terms(self) -> object:
        """Return what ranks must agree on, in a form that is equal for equal policies, whatever their order."""
        parts = {
            "tight": sorted(self.tight, key=str),
            "loose": sorted(self.loose, key=str),
            "classes": (self.bounds.tight, self.bounds.base, self.bounds.loose),
            "decay": (self.decay.shape, self.decay.magnitude, self.decay.end),
            "tables": {
                table: bound.to_config() for table, bound in sorted(self.tables.items(), key=str)
            },
        }
        return {name: part for name, part in parts.items() if part}

    def table_class(self, table: int | str) -> TableClass:
        """Return the class of a table."""
        if table in self.tight:
            return "tight"
        return "loose" if table in self.loose else "base"

    def bound(self, table: int | str, iteration: int) -> Bound:
        """Return the bound of a table's look-ups at an iteration, counted from 0."""
        final = self.tables.get(table, Bound.relative(self.bounds.of(self.table_class(table))))
        return Bound(final.kind, final.value * self.decay.factor(iteration))


def _check_tables_are_known(samples: object, num_rows: object) -> None:
    if is_distributed() and num_rows is None and not isinstance(samples, Mapping):
        raise SpecError(
            "several ranks must say which tables their samples are of: give a dictionary by table "
            "number or name, or the num_rows of all tables"
        )


def _of_all_ranks(
    own: list[Classification], group: dist.ProcessGroup | None, has_sizes: bool
) -> list[Classification]:
    """Return the classifications of all ranks. This is a collective call.

    Tight classifications come last, so that they win where ranks disagree. If ``has_sizes``, row counts are those of
    the tables themselves, and ranks must agree on them.
    """
    every = gathered(own, group)
    for rank, found in enumerate(every):
        if found is None:
            raise SpecError(f"rank {rank} could not class its tables; look at its error")
    merged = [one for found in every for one in found]
    sizes: dict[int | str, int] = {}
    for one in merged if has_sizes else ():
        table, num_rows = one.stats.table, one.stats.num_rows
        if sizes.setdefault(table, num_rows) != num_rows:
            raise SpecError(
                f"table {table!r} has {sizes[table]} rows on one rank and {num_rows} on another; give "
                "the tables that this rank owns as a dictionary by number or name"
            )
    return sorted(merged, key=lambda one: one.table_class == "tight")


def _is_table(table: object) -> bool:
    """True for a string or a non-negative integer."""
    return isinstance(table, str) or (type(table) is int and table >= 0)


def _tables(name: str, tables: Any) -> frozenset[int | str]:
    if isinstance(tables, str) or not isinstance(tables, Iterable):
        raise SpecError(f"{name} tables are a list of table numbers or names, not {tables!r}")
    found = list(tables)
    if not all(map(_is_table, found)):
        raise SpecError(
            f"{name} tables are numbered from 0, or named, not {sorted(map(str, found))}"
        )
    return frozenset(found)


def _bounds_by_table(bounds: Any) -> dict[int | str, Bound]:
    """Return the bounds by table, with numbers converted to relative bounds.

    Raises:
        SpecError: a table or a bound is invalid.
    """
    if not isinstance(bounds, Mapping):
        raise SpecError(f"bounds by table are a dictionary, as in {{'user': 0.01}}, not {bounds!r}")
    found = {}
    for table, bound in bounds.items():
        if not _is_table(table):
            raise SpecError(f"bounds name tables by number from 0 or by name, not {table!r}")
        try:
            found[table] = bound if isinstance(bound, Bound) else Bound.relative(bound)
        except SpecError as error:
            raise SpecError(f"table {table!r} has no possible bound: {error}") from error
    return found
