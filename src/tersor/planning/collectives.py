"""What a collective sends over which link of a cluster, and how often it waits for a message.

This is the alpha-beta model: a message costs a latency, a byte the inverse of a bandwidth. p ranks move
w bytes; there are N nodes with g of the ranks each, or m on one that is not full (else m = g)::

    per pass                    pairwise                 ring
    a rank sends                w * (p - 1) / p          w * (p - 1) / p
    a rank's link in its node   w * (g - 1) / p          w * (p - 1) / p, 0 where g = 1
    a node's link               g * w * (p - g) / p      w * (p - 1) / p, 0 where N = 1
    messages within a node      m - 1                    p - N, or p where N = 1  } less one, the
    messages between nodes      p - m                    N, or 0 where N = 1      } cheapest

Pairwise, every rank sends each other rank its part. In a ring, every rank sends to its neighbour, and
the ring enters every node once. ``w`` is what an all-to-all has for all ranks, what an all-gather ends
with, and what a reduce-scatter or an all-reduce begins with. An all-reduce is a reduce-scatter and an
all-gather, two passes; as a ring it counts whole rounds, so two messages more than a block passes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tersor.errors import SpecError
from tersor.planning.cluster import Cluster


class Collective(Enum):
    """What ranks do together."""

    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"

    @property
    def num_passes(self) -> int:
        """How often the bytes are sent."""
        return 2 if self is Collective.ALL_REDUCE else 1

    @property
    def is_sum(self) -> bool:
        """True if values are added on their way."""
        return self in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)

    def coded_nbytes(self, nbytes: float, num_ranks: int) -> tuple[list[float], list[float]]:
        """Return the original bytes that a rank encodes, and decodes, call by call."""
        own = nbytes / num_ranks
        if self is Collective.ALL_GATHER:
            return [own], [nbytes]
        if self is Collective.ALL_REDUCE:
            return [nbytes, own], [nbytes, nbytes]
        return [nbytes], [nbytes]


class Pattern(Enum):
    """Who sends to whom; the table of this module has the costs."""

    PAIRWISE = "pairwise"
    RING = "ring"


class Scope(Enum):
    """Which ranks take part: all, those of each node, or one of each node for every place on it."""

    ALL = "all"
    WITHIN_NODES = "within nodes"
    BETWEEN_NODES = "between nodes"

    def group(self, cluster: Cluster, num_ranks: int) -> tuple[Cluster, int]:
        """Return the cluster as one group of ranks sees it, and the ranks of the group.

        Between nodes there are as many groups as a node has ranks, and they share its link.

        Raises:
            SpecError: nodes with different numbers of ranks have no such groups.
        """
        if self is Scope.ALL:
            return cluster, num_ranks
        local = cluster.local_ranks(num_ranks)
        if num_ranks % local:
            raise SpecError(
                f"{num_ranks} ranks do not fill nodes of {local}; a collective within or between nodes "
                "needs full ones"
            )
        if self is Scope.WITHIN_NODES:
            return cluster, local
        share = replace(
            cluster, ranks_per_node=1, inter_bits_per_s=cluster.inter_bits_per_s / local
        )
        return share, num_ranks // local


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a collective on the links that carry most.

    Attributes:
        rank_nbytes: that a rank sends to others.
        near_nbytes: of them, on its link within its node.
        far_nbytes: that all ranks of the group on a node send over the node's link.
    """

    rank_nbytes: float
    near_nbytes: float
    far_nbytes: float

    @classmethod
    def of(cls, pattern: Pattern, nbytes: float, cluster: Cluster, num_ranks: int) -> Traffic:
        """Return what one pass of ``nbytes`` sends."""
        local = cluster.local_ranks(num_ranks)
        part = nbytes / num_ranks
        whole = part * (num_ranks - 1)
        if pattern is Pattern.PAIRWISE:
            return cls(whole, part * (local - 1), local * part * (num_ranks - local))
        return cls(whole, whole if local > 1 else 0.0, whole if num_ranks > local else 0.0)

    def seconds(self, cluster: Cluster) -> float:
        """Return how long the slower link takes at its full bandwidth; both work at once."""
        near_s = 8 * self.near_nbytes / cluster.intra_bits_per_s
        return max(near_s, 8 * self.far_nbytes / cluster.inter_bits_per_s)


def latency_s(collective: Collective, pattern: Pattern, cluster: Cluster, num_ranks: int) -> float:
    """Return the seconds that the messages of all passes add, for the rank that waits longest."""
    if pattern is Pattern.PAIRWISE:
        local = cluster.fewest_local_ranks(num_ranks)
        hops = (local - 1, num_ranks - local)
    else:
        nodes = cluster.num_nodes(num_ranks)
        far = nodes if nodes > 1 else 0
        hops = (num_ranks - far, far)
    each = (cluster.intra_latency_s, cluster.inter_latency_s)
    round_s = hops[0] * each[0] + hops[1] * each[1]
    if pattern is Pattern.RING and collective is not Collective.ALL_REDUCE:
        round_s -= min(one for one, count in zip(each, hops, strict=True) if count)
    return collective.num_passes * round_s
