"""The cluster and the training step that a plan is made for, as a user describes them."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from tersor.errors import SpecError
from tersor.planning.units import parse_bandwidth, parse_seconds

DEFAULTS: Final[Mapping[str, Any]] = {
    "ranks_per_node": 1,
    "inter": "100gbit",
    "intra": "2400gbit",
    "latency": "5us",
    "intra_latency": "2us",
    "overlap": 0.0,
}
KEYS: Final = (
    *DEFAULTS, "efficiency", "batch", "batch_per_rank", "sample_nbytes", "compute_ms",
    "allreduce_mbytes",
)  # fmt: skip
"""What a file may say; the options of ``tersor plan`` have the same names."""
_DEFAULT_BATCH: Final = 65536
"""MLPerf's batch for DLRM, which 4,096 ranks can still share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Ranks, nodes and the links between them.

    Attributes:
        ranks_per_node: ranks that share a node and its link to the others.
        inter_bits_per_s: of a node to the others, in each direction, shared by its ranks.
        intra_bits_per_s: of a rank to the others of its node, in each direction.
        inter_latency_s: that each message to another node adds.
        intra_latency_s: that each message within a node adds.
    """

    ranks_per_node: int = 1
    inter_bits_per_s: float
    intra_bits_per_s: float
    inter_latency_s: float = 0.0
    intra_latency_s: float = 0.0

    def local_ranks(self, num_ranks: int) -> int:
        """Return how many of the ranks share a node that is full.

        One that is not full never has more to send to the others: of n ranks, k on a node send
        k * (n - k) parts out, which is largest where k is nearest to half of n, and so of a full
        node; of two nodes both send as much.
        """
        return min(num_ranks, self.ranks_per_node)

    def fewest_local_ranks(self, num_ranks: int) -> int:
        """Return how many ranks share the node with the fewest: they send most messages to others."""
        return num_ranks % self.ranks_per_node or self.local_ranks(num_ranks)

    def num_nodes(self, num_ranks: int) -> int:
        """Return the nodes that the ranks need."""
        return math.ceil(num_ranks / self.ranks_per_node)

    def with_bandwidth(self, bits_per_s: float, num_ranks: int) -> Cluster:
        """Return the cluster with another link between nodes; within one where all ranks share it."""
        if num_ranks <= self.ranks_per_node:
            return replace(self, intra_bits_per_s=bits_per_s)
        return replace(self, inter_bits_per_s=bits_per_s)

    def bandwidth(self, num_ranks: int) -> float:
        """Return the bits per second that ``with_bandwidth`` changes."""
        is_one_node = num_ranks <= self.ranks_per_node
        return self.intra_bits_per_s if is_one_node else self.inter_bits_per_s


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


@dataclass(frozen=True, slots=True)
class Description:
    """What a plan is made for."""

    cluster: Cluster
    workload: Workload

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of a file, of options, or of both together.

        Raises:
            SpecError: a key or a value that cannot be meant.
        """
        unknown = [key for key in values if key not in KEYS]
        if unknown:
            raise SpecError(f"a cluster has no {unknown[0]!r}; it may have {', '.join(KEYS)}")
        said = {**DEFAULTS, **values}
        cluster = Cluster(
            ranks_per_node=_count(said, "ranks_per_node"),
            inter_bits_per_s=parse_bandwidth(_text(said, "inter")),
            intra_bits_per_s=parse_bandwidth(_text(said, "intra")),
            inter_latency_s=parse_seconds(_text(said, "latency")),
            intra_latency_s=parse_seconds(_text(said, "intra_latency")),
        )
        compute_ms = _number(said, "compute_ms", 0, math.inf)
        mbytes = _number(said, "allreduce_mbytes", 0, math.inf)
        efficiency = _number(said, "efficiency", 0, 1)
        if efficiency == 0:
            raise SpecError("the efficiency of links must be above 0")
        workload = Workload(
            batch=_count(said, "batch") if "batch" in said else None,
            batch_per_rank=_count(said, "batch_per_rank") if "batch_per_rank" in said else None,
            sample_nbytes=_count(said, "sample_nbytes") if "sample_nbytes" in said else None,
            compute_s=None if compute_ms is None else compute_ms / 1e3,
            allreduce_nbytes=None if mbytes is None else mbytes * 1e6,
            overlap=_number(said, "overlap", 0, 1) or 0.0,
            efficiency=efficiency,
        )
        return cls(cluster, workload)


def read_cluster_file(path: str | Path) -> dict[str, Any]:
    """Return the keys and values of a ``.toml`` or ``.json`` file.

    Raises:
        SpecError: the file is neither.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not text; docs/plan.md shows a cluster file") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise SpecError(
            f"{path} is no {kind}: {error}; docs/plan.md shows a cluster file"
        ) from error
    if not isinstance(values, dict):
        raise SpecError(f"{path} must hold keys and values, as docs/plan.md shows")
    return values


def _text(values: Mapping[str, Any], key: str) -> str:
    if not isinstance(values[key], str):
        raise SpecError(
            f"{key} must be a text with a unit, as in {DEFAULTS[key]!r}, not {values[key]!r}"
        )
    return str(values[key])


def _count(values: Mapping[str, Any], key: str) -> int:
    value = values[key]
    if type(value) is not int or value < 1:
        raise SpecError(f"{key} must be a whole number from 1, not {value!r}")
    return value


def _number(values: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most or not math.isfinite(value):
        limit = f"from {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise SpecError(f"{key} must be a number {limit}, not {value!r}")
    return float(value)
