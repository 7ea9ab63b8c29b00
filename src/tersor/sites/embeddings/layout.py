"""The assignment of tables and samples to ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tersor.errors import SpecError


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The owner, row width and name of each table.

    Attributes:
        owners: the rank that owns each table.
        widths: number of values per row of each table.
        names: name of each table.
    """

    owners: tuple[int, ...]
    widths: tuple[int, ...]
    names: tuple[str, ...]

    def of(self, rank: int) -> list[int]:
        """Return the numbers of the tables that a rank owns, in order."""
        return [table for table, owner in enumerate(self.owners) if owner == rank]

    def check(self, world_size: int) -> None:
        """Raise ``SpecError`` unless the layout is consistent and valid for ``world_size`` ranks."""
        if len(self.owners) != len(self.widths):
            raise SpecError(
                f"{len(self.owners)} tables need as many widths, not {len(self.widths)}"
            )
        if len(self.owners) != len(self.names) or len(set(self.names)) != len(self.names):
            raise SpecError(
                f"{len(self.owners)} tables need as many names, all different, not {self.names}"
            )
        if any(not 0 <= owner < world_size for owner in self.owners):
            raise SpecError(f"tables belong to ranks 0 to {world_size - 1}, not to {self.owners}")
        if any(type(width) is not int or width < 1 for width in self.widths):
            raise SpecError(f"rows must have at least one value, not {self.widths}")


def check_batches(batches: Sequence[int], num_rows: Iterable[int], world_size: int) -> None:
    """Raise ``SpecError`` unless ``batches`` has one batch size per rank, adding up to each table's ``num_rows``."""
    if len(batches) != world_size or any(count != sum(batches) for count in num_rows):
        raise SpecError(
            f"batches of {batches} samples do not make up the looked-up rows; give one number per "
            "rank, adding up to the global batch"
        )
    if min(batches) < 0:
        raise SpecError(f"batches are at least 0 samples for every rank, not {batches}")


def even_batches(total: int | None, world_size: int) -> list[int]:
    """Split a global batch of ``total`` samples evenly among the ranks.

    Raises:
        SpecError: ``total`` is not divisible by ``world_size``, or is None because this rank does not know it.
    """
    if total is None:
        raise SpecError(
            "a rank without tables must be given batches: it cannot see the batch's size"
        )
    if total % world_size:
        raise SpecError(
            f"a batch of {total} samples is not divisible by {world_size} ranks; give batches"
        )
    return [total // world_size] * world_size
