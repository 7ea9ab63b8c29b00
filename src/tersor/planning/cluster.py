"""A user's description of the cluster to plan for."""

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
"""The values used for keys that a description leaves out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Ranks, nodes and the links between them.

    Attributes:
        ranks_per_node: ranks that share a node and its link to the other nodes.
        inter_bits_per_s: bandwidth of a node's link to other nodes in each direction; its ranks share it.
        intra_bits_per_s: bandwidth of a rank's link to the others on its node, in each direction.
        inter_latency_s: latency of each message to another node.
        intra_latency_s: latency of each message within a node.
    """

    ranks_per_node: int = 1
    inter_bits_per_s: float
    intra_bits_per_s: float
    inter_latency_s: float = 0.0
    intra_latency_s: float = 0.0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Build a cluster from values under the keys of ``DEFAULTS``; other keys are ignored.

        Raises:
            SpecError: a value is invalid.

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
        """Return the number of ranks on a full node.

        A partly filled node never sends more to other nodes than a full one does. With n ranks, the
        k ranks of a node send k * (n - k) parts out. That is largest where k is closest to n / 2,
        which is a full node; with two nodes, both send the same amount.
        """
        return min(num_ranks, self.ranks_per_node)

    def fewest_local_ranks(self, num_ranks: int) -> int:
        """Return the number of ranks on the emptiest node, which send the most messages off it."""
        return num_ranks % self.ranks_per_node or self.local_ranks(num_ranks)

    def num_nodes(self, num_ranks: int) -> int:
        """Return the number of nodes that the ranks occupy."""
        return math.ceil(num_ranks / self.ranks_per_node)

    def with_bandwidth(self, bits_per_s: float, num_ranks: int) -> Cluster:
        """Return a copy with another inter-node bandwidth, or intra-node if all ranks share a node."""
        if num_ranks <= self.ranks_per_node:
            return replace(self, intra_bits_per_s=bits_per_s)
        return replace(self, inter_bits_per_s=bits_per_s)

    def bandwidth(self, num_ranks: int) -> float:
        """Return the bandwidth that ``with_bandwidth`` changes, in bits per second."""
        is_one_node = num_ranks <= self.ranks_per_node
        return self.intra_bits_per_s if is_one_node else self.inter_bits_per_s


def read_cluster_file(path: str | Path) -> dict[str, Any]:
    """Return the keys and values of a ``.toml`` or ``.json`` file.

    Raises:
        SpecError: the file is not valid TOML or JSON, or is not a mapping.
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
    """Return a positive integer.

    Raises:
        SpecError: the value is anything else.
    """
    value = values[key]
    if type(value) is not int or value < 1:
        raise SpecError(f"{key} must be a whole number from 1, not {value!r}")
    return value
