"""What a result row about look-ups says beyond ratio and speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from tersor.bench.core.row_checks import ask, is_count, is_number
from tersor.errors import SpecError
from tersor.sites.embeddings.classes import CLASSES

ALL_CLASSES: Final = "all"
_FROM_ONE: Final = ("width", "num_ranks", "num_slices", "num_iterations")
_LATER: Final = ("setting", "num_tables")
"""Fields that the first rows did not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupFacts:
    """One table's look-ups, cut as an exchange sends them, or those of all tables in one step.

    Attributes:
        table: its number; None where all tables of a step went through one call.
        table_class: ``"tight"``, ``"base"`` or ``"loose"``; ``ALL_CLASSES`` where ``table`` is None.
        num_rows: looked-up rows in all slices.
        width: values per row; of the widest table where ``table`` is None.
        num_ranks: slices per look-up, one for each destination.
        num_slices: of all iterations together.
        num_iterations: look-ups that were dumped.
        num_distinct: distinct rows, counted slice by slice and added up.
        num_distinct_codes: the same after quantizing: rows that fall together count once.
        error_share: worst error over the slice's bound, also for encoders that promise none.
        setting: what was asked for in words, where it is not the default.
        num_tables: of the dump; 0 in rows of earlier versions.
    """

    table: int | None
    table_class: str
    num_rows: int
    width: int
    num_ranks: int
    num_slices: int
    num_iterations: int
    num_distinct: int
    num_distinct_codes: int
    error_share: float
    setting: str = ""
    num_tables: int = 0

    @property
    def repeated_share(self) -> float:
        """Share of rows that repeat an earlier row of their slice."""
        return 1.0 - self.num_distinct / max(1, self.num_rows)

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Rebuild from the JSON form; anything unexpected raises ``SpecError``."""
        known = {f.name for f in fields(cls)}
        if not isinstance(config, Mapping) or {*_LATER, *config} != known:
            raise SpecError("the facts about look-ups have other fields")
        classes = CLASSES if config["table"] is not None else (ALL_CLASSES,)
        ask("table_class", config["table_class"] in classes, " or ".join(classes))
        ask("setting", isinstance(config.get("setting", ""), str), "a text")
        ask("error_share", is_number(config["error_share"]), "a number")
        ask("table", config["table"] is None or is_count(config["table"]), "a count or null")
        for name in set(config) - {"table", "table_class", "setting", "error_share"}:
            least = 1 if name in _FROM_ONE else 0
            ask(name, is_count(config[name], least), f"a count from {least}")
        return cls(**config)
