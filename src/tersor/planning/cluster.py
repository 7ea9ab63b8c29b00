"""The cluster that a plan is made for, as a user describes it."""

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
}
"""What is taken of a cluster that is not described."""


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

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read a cluster from values under the keys of ``DEFAULTS``; other keys are not looked at.

        Raises:
            SpecError: a value that cannot be meant.

        Example:
            >>> Cluster.parse({"ranks_per_node": 8, "inter": "400gbit"}).inter_bits_per_s
            400000000000.0
        """
        said = {**DEFAULTS, **values}
        return cls(
            ranks_per_node=read_count(said, "ranks_per_node"),
            inter_bits_per_s=parse_bandwidth(_text(said, "inter")),
            intra_bits_per_s=parse_bandwidth(_text(said, "intra")),
            inter_latency_s=parse_seconds(_text(said, "latency")),
            intra_latency_s=parse_seconds(_text(said, "intra_latency")),
        )

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


def read_count(values: Mapping[str, Any], key: str) -> int:
    """Return a whole number from 1; anything else raises ``SpecError``."""
    value = values[key]
    if type(value) is not int or value < 1:
        raise SpecError(f"{key} must be a whole number from 1, not {value!r}")
    return value
