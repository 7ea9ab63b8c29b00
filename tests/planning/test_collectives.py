"""Bytes and messages of every collective are those that a simulation of its ranks counts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tersor.errors import SpecError
from tersor.planning import Cluster, Collective, Pattern, Scope, Traffic
from tersor.planning.collectives import latency_s

NEAR_S, FAR_S = 1e-6, 1e-4
RANKS = st.integers(2, 40)
PER_NODE = st.integers(1, 16)


def cluster_of(per_node: int, **changes) -> Cluster:
    known = {"inter_bits_per_s": 8e9, "intra_bits_per_s": 8e11}
    latencies = {"inter_latency_s": FAR_S, "intra_latency_s": NEAR_S}
    return Cluster(ranks_per_node=per_node, **(known | latencies | changes))


def messages(pattern: Pattern, ranks: int) -> list[tuple[int, int]]:
    """Return source and destination of every block of a pass: one of p parts of the bytes each."""
    if pattern is Pattern.PAIRWISE:
        return [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return [(a, (a + 1) % ranks) for a in range(ranks)] * (ranks - 1)


@given(pattern=st.sampled_from(Pattern), ranks=RANKS, per_node=PER_NODE)
def test_the_fullest_links_carry_what_ranks_send_over_them(pattern, ranks, per_node):
    rank, near, far = Counter(), Counter(), Counter()
    for source, destination in messages(pattern, ranks):
        rank[source] += 1
        if source // per_node == destination // per_node:
            near[source] += 1
        else:
            far[source // per_node] += 1
    found = Traffic.of(pattern, float(ranks), cluster_of(per_node), ranks)
    most = [max(one.values(), default=0) for one in (rank, near, far)]
    assert [found.rank_nbytes, found.near_nbytes, found.far_nbytes] == pytest.approx(most)


@given(ranks=RANKS, per_node=PER_NODE)
def test_messages_are_those_of_the_block_or_rank_that_waits_longest(ranks, per_node):
    cluster = cluster_of(per_node)

    def hop_s(a: int, b: int) -> float:
        return NEAR_S if a // per_node == b // per_node else FAR_S

    turns = [[(start + k) % ranks for k in range(ranks)] for start in range(ranks)]
    slowest_s = max(sum(hop_s(*hop) for hop in pairwise(turn)) for turn in turns)
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        assert latency_s(collective, Pattern.RING, cluster, ranks) == pytest.approx(slowest_s)
    rounds_s = 2 * sum(hop_s(a, (a + 1) % ranks) for a in range(ranks))
    assert latency_s(Collective.ALL_REDUCE, Pattern.RING, cluster, ranks) == pytest.approx(rounds_s)
    all_s = max(sum(hop_s(a, b) for b in range(ranks) if b != a) for a in range(ranks))
    found_s = latency_s(Collective.ALL_TO_ALL, Pattern.PAIRWISE, cluster, ranks)
    assert found_s == pytest.approx(all_s)


def test_groups_between_nodes_share_the_link_of_their_node():
    cluster = cluster_of(8)
    assert Scope.ALL.group(cluster, 20) == (cluster, 20)
    assert Scope.WITHIN_NODES.group(cluster, 32) == (cluster, 8)
    group, members = Scope.BETWEEN_NODES.group(cluster, 32)
    assert (group.ranks_per_node, group.inter_bits_per_s, members) == (1, 1e9, 4)
    # fewer ranks than a node holds are one node
    assert Scope.WITHIN_NODES.group(cluster, 4) == (cluster, 4)
    assert Scope.BETWEEN_NODES.group(cluster, 4)[1] == 1
    for scope in (Scope.WITHIN_NODES, Scope.BETWEEN_NODES):
        with pytest.raises(SpecError, match="12 ranks do not fill nodes of 8"):
            scope.group(cluster, 12)
