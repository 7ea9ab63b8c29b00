"""Facts in a result row about embedding look-ups, beyond ratio and speed."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tersor.bench.core.row_checks import Count, FromOne, require
from tersor.sites.embeddings.classes import CLASSES

ALL_CLASSES: Final = "all"


class LookupFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The look-ups of one table, sliced as an exchange sends them, or those of all tables in one step.

    Attributes:
        table: number of the table; None if all tables of a step went through one call.
        table_class: ``"tight"``, ``"base"`` or ``"loose"``; ``ALL_CLASSES`` if ``table`` is None.
        num_rows: looked-up rows in all slices.
        width: values per row; those of the widest table if ``table`` is None.
        num_ranks: slices per look-up, one for each destination.
        num_slices: slices of all iterations together.
        num_iterations: dumped look-ups.
        num_distinct: distinct rows, counted per slice and summed.
        num_distinct_codes: distinct rows after quantizing, counted likewise.
        error_share: worst error divided by the slice's bound, also for encoders that promise none.
        setting: the requested setting in words, if it is not the default.
        num_tables: tables in the dump; 0 in rows of earlier versions.
    """

    table: Count | None
    table_class: str
    num_rows: Count
    width: FromOne
    num_ranks: FromOne
    num_slices: FromOne
    num_iterations: FromOne
    num_distinct: Count
    num_distinct_codes: Count
    error_share: float
    setting: str = ""
    num_tables: Count = 0

    def __post_init__(self) -> None:
        """Reject a class that does not exist for a table, or for a whole step."""
        classes = CLASSES if self.table is not None else (ALL_CLASSES,)
        require("table_class", self.table_class in classes, " or ".join(classes))

    @property
    def repeated_share(self) -> float:
        """Share of rows that repeat an earlier row of their slice."""
        return 1.0 - self.num_distinct / max(1, self.num_rows)
