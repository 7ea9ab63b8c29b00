"""How much a collective sends over each link of a cluster, and how many messages it waits for.

This is the alpha-beta model: a message costs a latency, a byte costs the inverse of a bandwidth. p ranks
move w bytes. They occupy N nodes with g ranks each; a partly filled node has m ranks (else m = g)::

    per pass                    pairwise                 ring
    a rank sends                w * (p - 1) / p          w * (p - 1) / p
    a rank's link in its node   w * (g - 1) / p          w * (p - 1) / p, 0 where g = 1
    a node's link               g * w * (p - g) / p      w * (p - 1) / p, 0 where N = 1
    messages within a node      m - 1                    p - N, or p where N = 1  } minus the
    messages between nodes      p - m                    N, or 0 where N = 1      } cheapest one

In the pairwise pattern, every rank sends each other rank its part. In a ring, every rank sends to its
neighbour, and the ring enters every node once. ``w`` is a rank's input of an all-to-all, its result of an
all-gather, and its input of a reduce-scatter or an all-reduce. An all-reduce is a reduce-scatter and an
all-gather, hence two passes. As a ring it is charged for whole rounds, which is two messages more than a
block is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tersor.errors import SpecError
from tersor.planning.cluster import Cluster


class Collective(Enum):
    """A collective operation."""

    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"

    @property
    def num_passes(self) -> int:
        """The number of times the bytes are sent."""
        return 2 if self is Collective.ALL_REDUCE else 1

    @property
    def is_sum(self) -> bool:
        """True if the collective reduces values by adding them."""
        return self in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)

    def coded_nbytes(self, nbytes: float, num_ranks: int) -> tuple[list[float], list[float]]:
        """Return the original bytes of each encode call and of each decode call of a rank."""
        own = nbytes / num_ranks
        if self is Collective.ALL_GATHER:
            return [own], [nbytes]
        if self is Collective.ALL_REDUCE:
            return [nbytes, own], [nbytes, nbytes]
        return [nbytes], [nbytes]


class Pattern(Enum):
    """Who sends to whom; the module docstring tabulates the costs."""

    PAIRWISE = "pairwise"
    RING = "ring"


class Scope(Enum):
    """Which ranks form a group: all ranks, those of one node, or those with the same local rank."""

    ALL = "all"
    WITHIN_NODES = "within nodes"
    BETWEEN_NODES = "between nodes"

    def group(self, cluster: Cluster, num_ranks: int) -> tuple[Cluster, int]:
        """Return the cluster as one group of ranks sees it, and the number of ranks in the group.

        Between nodes, there is one group per local rank, and these groups share each node's link.

        Raises:
            SpecError: the scope is not ``ALL``, and the nodes have different numbers of ranks.
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
    """Bytes that a collective sends over the most heavily loaded links.

    Attributes:
        rank_nbytes: bytes that a rank sends to other ranks.
        near_nbytes: the part of them that uses the rank's link within its node.
        far_nbytes: bytes that all ranks of the group on a node send over the node's link.
    """

    rank_nbytes: float
    near_nbytes: float
    far_nbytes: float

    @classmethod
    def of(cls, pattern: Pattern, nbytes: float, cluster: Cluster, num_ranks: int) -> Traffic:
        """Return the traffic of one pass over ``nbytes``."""
        local = cluster.local_ranks(num_ranks)
        part = nbytes / num_ranks
        whole = part * (num_ranks - 1)
        if pattern is Pattern.PAIRWISE:
            return cls(whole, part * (local - 1), local * part * (num_ranks - local))
        return cls(whole, whole if local > 1 else 0.0, whole if num_ranks > local else 0.0)

    def seconds(self, cluster: Cluster) -> float:
        """Return the time of the slower link at full bandwidth; both links work concurrently."""
        near_s = 8 * self.near_nbytes / cluster.intra_bits_per_s
        return max(near_s, 8 * self.far_nbytes / cluster.inter_bits_per_s)


def latency_s(collective: Collective, pattern: Pattern, cluster: Cluster, num_ranks: int) -> float:
    """Return the latency of the messages of all passes, for the rank that waits longest."""
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
