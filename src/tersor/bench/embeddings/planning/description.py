"""A user's description of the embedding training step to plan for, in addition to the cluster."""

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
"""The keys of a file; the options of ``tersor plan`` have the same names."""
_DEFAULT_BATCH: Final = 65536
"""MLPerf's batch for DLRM, which is large enough for 4,096 ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A description of a training step; values that are None are taken from measurements.

    Attributes:
        batch: samples of all ranks per step; None for 65,536, unless ``batch_per_rank`` is given.
        batch_per_rank: samples of each rank per step; None if ``batch`` determines it.
        sample_nbytes: bytes of the rows that one sample looks up in all tables.
        compute_s: seconds of each rank's computing per step without exchanges, for any rank count.
        allreduce_nbytes: bytes of the dense gradients.
        overlap: share of the payload's time that ranks spend computing.
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
        """Reject a batch that is given both in total and per rank."""
        if self.batch is not None and self.batch_per_rank is not None:
            raise SpecError("give the batch of all ranks or that per rank, not both")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Parse values from a file, from options, or from both merged.

        Keys of ``Cluster.parse`` may be present and are ignored.

        Raises:
            SpecError: a key is unknown, or a value is invalid.
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
        """Return the samples per rank, which is also the number of rows it receives of each table.

        Raises:
            SpecError: there is less than one sample per rank.
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
