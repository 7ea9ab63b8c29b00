"""Classes of embedding tables with different error bounds, assigned manually or from a sample of look-ups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch

from tersor.errors import SpecError
from tersor.kernels.quantize import Grid, bounded_quantize, finite_range
from tersor.kernels.rows.dedup import unique_rows
from tersor.kernels.rows.layout import row_shape
from tersor.raw_bytes import as_bytes
from tersor.types import Bound

TableClass = Literal["tight", "base", "loose"]
CLASSES: Final = get_args(TableClass)

MIN_TIGHT_ROWS: Final = 10_000
"""Tables with at least this many rows are tight. Their rare rows stay near zero while their hot rows determine the
range, so bins relative to the range cannot resolve the rare rows. The smallest tight table of the published lists has
93,145 rows, but tables cut to 20,000 rows lost 0.0006 of AUC in the base class and nothing measurable in this one."""
MAX_SMALL_ROWS: Final = 200
"""Tables with at most this many rows are tight as well. Every sample uses one of their rows, and each distinct row is
sent only once, so a tight bound costs 2 % of all bytes. The loose bound cost 0.0004 of AUC here. ``classify`` never
makes a table loose."""
MIN_DISTINCT_SHARE: Final = 0.9
"""A table is tight if less than this share of its distinct rows stays distinct at the base bound."""


@dataclass(frozen=True, slots=True)
class ClassBounds:
    """The final relative bound of each class.

    Attributes:
        tight: for tables whose rows are easily confused.
        base: for all other tables.
        loose: for tables that tolerate larger errors.
    """

    tight: float = 0.01
    base: float = 0.03
    loose: float = 0.05

    def __post_init__(self) -> None:
        """Reject invalid bounds, and bounds that are out of order."""
        for name in CLASSES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SpecError(f"the {name} bound must be a number, not {value!r}")
            if not 0 < value < math.inf:
                raise SpecError(f"the {name} bound must be above 0 and finite, not {value}")
        if not self.tight <= self.base <= self.loose:
            raise SpecError(
                f"bounds must not shrink from tight to loose: {self.tight}, {self.base}, {self.loose}"
            )

    def of(self, table_class: TableClass) -> float:
        """Return the bound of a class."""
        return float(getattr(self, table_class))


@dataclass(frozen=True, slots=True)
class TableStats:
    """The properties of a table that determine its class.

    Attributes:
        table: number or name of the table.
        num_rows: number of rows of the table; if unknown, the number of distinct rows in the sample.
        num_distinct: number of distinct rows in the sample.
        distinct_shares: for each class, the share of distinct rows that stay distinct when quantized with its
            bound; 1 means no homogenization.
    """

    table: int | str
    num_rows: int
    num_distinct: int
    distinct_shares: dict[TableClass, float]


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a table, with the reason.

    Attributes:
        stats: the properties of the table.
        table_class: the assigned class.
        reason: a human-readable reason.
    """

    stats: TableStats
    table_class: TableClass
    reason: str


def _num_distinct(rows: torch.Tensor) -> int:
    row_nbytes = rows.shape[1] * rows.element_size()
    _, first = unique_rows(as_bytes(rows.contiguous()).view(rows.shape[0], row_nbytes))
    return int(first.numel())


def _distinct_codes(rows: torch.Tensor, bound: float) -> int:
    low, high = finite_range(rows).tolist()
    error_bound = Bound.relative(bound).resolve(low, high) if low <= high else 0.0
    grid = Grid.for_bound(error_bound, rows.dtype, (low, high))
    if grid is None:
        return _num_distinct(rows)
    codes, _ = bounded_quantize(rows.reshape(-1), grid)
    return _num_distinct(codes.view(rows.shape))


def table_stats(
    table: int | str, sample: torch.Tensor, bounds: ClassBounds, num_rows: int | None = None
) -> TableStats:
    """Compute the statistics of one table from a sample of looked-up rows, [..., width].

    Raises:
        SpecError: the sample is empty.
    """
    rows = sample.detach().reshape(row_shape(tuple(sample.shape)))
    if rows.numel() == 0:
        raise SpecError(f"the sample of table {table} is empty; give looked-up rows of a batch")
    num_distinct = _num_distinct(rows)
    distinct_shares: dict[TableClass, float] = {
        name: _distinct_codes(rows, bounds.of(name)) / num_distinct for name in CLASSES
    }
    return TableStats(
        table, num_distinct if num_rows is None else num_rows, num_distinct, distinct_shares
    )


def _class_of(stats: TableStats) -> tuple[TableClass, str]:
    if stats.num_rows >= MIN_TIGHT_ROWS:
        return "tight", f"{stats.num_rows:,} rows: rare ones are small compared with the range"
    if stats.num_rows <= MAX_SMALL_ROWS:
        return "tight", f"{stats.num_rows:,} rows, which are sent once each"
    share = stats.distinct_shares["base"]
    if share < MIN_DISTINCT_SHARE:
        return "tight", f"only {share:.0%} of distinct rows stay distinct at the base bound"
    return "base", f"{stats.num_rows:,} rows"


def classify(
    samples: Sequence[torch.Tensor] | Mapping[int | str, torch.Tensor],
    num_rows: Sequence[int] | Mapping[int | str, int] | None = None,
    bounds: ClassBounds | None = None,
) -> list[Classification]:
    """Assign tables to classes, given a batch of look-ups for each.

    Large tables (``MIN_TIGHT_ROWS``) and small tables (``MAX_SMALL_ROWS``) are tight, and so are tables with rows that
    the base bound would merge (``MIN_DISTINCT_SHARE``). All other tables are base.

    Args:
        samples: looked-up rows, [..., width], of all tables in order, or of some tables by number or name.
        num_rows: number of rows of each of these tables; None if unknown.
        bounds: bounds of the classes.

    Raises:
        SpecError: ``samples`` and ``num_rows`` are for different tables, a sample is empty, or ``bounds`` has the
            wrong type.

    Example:
        >>> rows = torch.randn(3, 16)[torch.arange(64) % 3]
        >>> classify([rows], [3])[0].table_class
        'tight'
    """
    by_table = _by_table(samples)
    counts = dict.fromkeys(by_table) if num_rows is None else _by_table(num_rows)
    if counts.keys() != by_table.keys():
        raise SpecError(
            f"samples are of tables {list(by_table)}, row counts of {list(counts)}; give both of the same"
        )
    bounds = ClassBounds() if bounds is None else bounds
    if not isinstance(bounds, ClassBounds):
        raise SpecError(f"bounds must be ClassBounds(tight, base, loose), not {bounds!r}")
    found = []
    for table, sample in by_table.items():
        stats = table_stats(table, sample, bounds, counts[table])
        found.append(Classification(stats, *_class_of(stats)))
    return found


def _by_table(values: Sequence[Any] | Mapping[int | str, Any]) -> dict[int | str, Any]:
    return dict(values if isinstance(values, Mapping) else enumerate(values))
