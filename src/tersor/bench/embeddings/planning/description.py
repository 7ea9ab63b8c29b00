"""The training step of look-ups that a plan is made for, as a user describes it beside a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from tersor.bench.planning.description import (
    SHARED_KEYS,
    read_efficiency,
    read_milliseconds,
    read_number,
    refuse_unknown,
)
from tersor.errors import SpecError
from tersor.planning.cluster import read_count

_COUNTS: Final = ("batch", "batch_per_rank", "sample_nbytes")
KEYS: Final = (*SHARED_KEYS, *_COUNTS, "allreduce_mbytes")
"""What a file may say; the options of ``tersor plan`` have the same names."""
_DEFAULT_BATCH: Final = 65536
"""MLPerf's batch for DLRM, which 4,096 ranks can still share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A training step, as far as it was described; None is left to what was measured.

    Attributes:
        batch: samples of all ranks per step; None for 65,536, unless ``batch_per_rank`` says it.
        batch_per_rank: samples of each rank per step; None where ``batch`` says it.
        sample_nbytes: bytes of the rows that one sample looks up in all tables.
        compute_s: of each rank per step, without exchanges, at any number of ranks.
        allreduce_nbytes: of the dense gradients.
        overlap: share of the time that payloads travel during which ranks compute.
        efficiency: share of a link's bandwidth that an all-to-all reaches.
    """

    batch: int | None = None
    batch_per_rank: int | None = None
    sample_nbytes: int | None = None
    compute_s: float | None = None
    allreduce_nbytes: float | None = None
    overlap: float = 0.0
    efficiency: float | None = None

    def __post_init__(self) -> None:
        """Refuse two answers to one question."""
        if self.batch is not None and self.batch_per_rank is not None:
            raise SpecError("give the batch of all ranks or that per rank, not both")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of a file, of options, or of both together; ``Cluster.parse`` reads others.

        Raises:
            SpecError: a key that neither knows, or a value that cannot be meant.
        """
        refuse_unknown(values, KEYS)
        mbytes = read_number(values, "allreduce_mbytes", 0)
        return cls(
            **{key: read_count(values, key) for key in _COUNTS if key in values},
            compute_s=read_milliseconds(values, "compute_ms"),
            allreduce_nbytes=None if mbytes is None else mbytes * 1e6,
            overlap=read_number(values, "overlap", 0, 1) or 0.0,
            efficiency=read_efficiency(values),
        )

    def rows_per_slice(self, num_ranks: int) -> float:
        """Return the samples of one rank, which are the rows it gets of each table.

        Raises:
            SpecError: there is less than one.
        """
        if self.batch_per_rank is not None:
            return self.batch_per_rank
        batch = self.batch or _DEFAULT_BATCH
        if batch < num_ranks:
            raise SpecError(
                f"a batch of {batch} cannot be shared by {num_ranks} ranks; give a larger --batch, "
                "or --batch-per-rank"
            )
        return batch / num_ranks
