"""Transfers take what a calculation by hand says, and a planted error in the formula is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tersor.errors import SpecError
from tersor.planning import (
    UNCODED,
    Cluster,
    CodecCosts,
    Collective,
    Line,
    Pattern,
    RatioCurve,
    Scope,
    Traffic,
    Transfer,
    Transport,
    hierarchical,
    transfers,
)

MB, MS, US = 1e6, 1e-3, 1e-6
# 1 MB per ms between nodes, 100 within; 10 us and 1 us per message
NODES_OF_8 = Cluster(
    ranks_per_node=8, inter_bits_per_s=8e9, intra_bits_per_s=8e11, inter_latency_s=10 * US,
    intra_latency_s=1 * US,
)  # fmt: skip
ONE_EACH = replace(NODES_OF_8, ranks_per_node=1)
GATHER, SCATTER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE
# 1 us and 0.1 us per kB to encode, half of it to decode
EIGHT_BIT = CodecCosts(
    Line(1 * US, 1e-10), Line(0.5 * US, 5e-11), RatioCurve.fixed(4.0), has_sizes=False
)
FOUR_BIT = replace(EIGHT_BIT, ratio=RatioCurve.fixed(8.0))


def transfer(collective, nbytes, **changes):
    return Transfer(name="it", collective=collective, nbytes=nbytes, **changes)


CASES = {
    # three quarters of the bytes over the bandwidth, and three messages one after the other
    "ring all-gather, a link each": (ONE_EACH, 4, [transfer(GATHER, 1 * MB)], 0.75 * MS + 30 * US),
    "ring reduce-scatter, the same": (
        ONE_EACH, 4, [transfer(SCATTER, 1 * MB)], 0.75 * MS + 30 * US,
    ),
    "ring all-gather in a node": (NODES_OF_8, 8, [transfer(GATHER, 8 * MB)], 70 * US + 7 * US),
    # twice the bytes, twice round: 2 * 4 messages
    "ring all-reduce": (ONE_EACH, 4, [transfer(REDUCE, 1 * MB)], 1.5 * MS + 80 * US),
    # three modules, each with a gather of its own and all of its messages
    "ring all-gather of three modules": (
        ONE_EACH, 4, [transfer(GATHER, 1 * MB, costs=EIGHT_BIT, count=3)],
        3 * (187.5 * US + 30 * US + 26 * US + 50.5 * US),
    ),
    # every link carries 15 MB, that between nodes at 1 MB/ms; 2 messages out and 13 within
    "ring all-gather of two nodes": (
        NODES_OF_8, 16, [transfer(GATHER, 16 * MB)], 15 * MS + 33 * US,
    ),
    # 8 ranks send 8 parts of 1 MB each out of the node, with 8 messages, and 7 within
    "all-to-all of two nodes": (
        NODES_OF_8, 16, [transfer(Collective.ALL_TO_ALL, 16 * MB)], 64 * MS + 87 * US,
    ),
    "pairwise reduce-scatter, the same": (
        NODES_OF_8, 16, [transfer(SCATTER, 16 * MB, pattern=Pattern.PAIRWISE)], 64 * MS + 87 * US,
    ),
    # 2 MB gathered per place on a node: half of it comes from the other node, for 8 places at once;
    # then 7/8 of 16 MB within
    "hierarchical all-gather": (
        NODES_OF_8, 16, hierarchical("w", GATHER, 16 * MB, 8), 8 * MS + 10 * US + 140 * US + 7 * US,
    ),
    # 16 MB at 8 bits, 7/8 within: 3.5 MB; the sum of 2 MB at 4 bits, half goes out: 8 times 0.125 MB.
    # encoding 16 MB and 2 MB: 1601 and 201 us; decoding half of it
    "hierarchical reduce-scatter at 8 and 4 bits": (
        NODES_OF_8, 16,
        hierarchical("g", SCATTER, 16 * MB, 8, within=EIGHT_BIT, between=FOUR_BIT),
        (35 + 7) * US + (1000 + 10) * US + 1.5 * (1601 + 201) * US,
    ),
    # scattered and gathered within: 7/8 of 16 MB each; 2 * 1/2 of 2 MB between, for 8 places at once
    "hierarchical all-reduce": (
        NODES_OF_8, 16, hierarchical("d", REDUCE, 16 * MB, 8),
        2 * (140 + 7) * US + 2 * 8 * MS + 2 * 2 * 10 * US,
    ),
    # everything twice: 7/8 of 16 MB within, then half of it out
    "hierarchical all-to-all": (
        NODES_OF_8, 16, hierarchical("r", Collective.ALL_TO_ALL, 16 * MB, 8),
        (140 + 7) * US + 64 * MS + 10 * US,
    ),
}  # fmt: skip


def wrong_cases() -> list[str]:
    """Return the cases that are not predicted as by hand."""
    found = {
        name: sum(one.phases(cluster, ranks).total_s for one in parts)
        for name, (cluster, ranks, parts, _) in CASES.items()
    }
    return [name for name, case in CASES.items() if found[name] != pytest.approx(case[-1])]


def test_all_cases_take_what_was_calculated_by_hand():
    assert wrong_cases() == []


def _unshared(self, cluster, num_ranks):
    return cluster, {Scope.ALL: num_ranks, Scope.WITHIN_NODES: 8, Scope.BETWEEN_NODES: 2}[self]


def _whole(pattern, nbytes, cluster, num_ranks):
    del pattern
    return Traffic(nbytes, nbytes, nbytes if num_ranks > cluster.ranks_per_node else 0.0)


def _near_s(sent, cluster):
    return 8 * sent.near_nbytes / cluster.intra_bits_per_s


def _far_s(sent, cluster):
    return 8 * sent.far_nbytes / cluster.inter_bits_per_s


FAULTS = {
    "the own part travels too": (Traffic, "of", staticmethod(_whole)),
    "links take turns": (Traffic, "seconds", lambda *of: _near_s(*of) + _far_s(*of)),
    "the link between nodes is forgotten": (Traffic, "seconds", _near_s),
    "the links within nodes are forgotten": (Traffic, "seconds", _far_s),
    "bytes are taken for bits": (
        Traffic,
        "seconds",
        lambda *of: max(_near_s(*of), _far_s(*of)) / 8,
    ),
    "groups do not share a link": (Scope, "group", _unshared),
    "an all-reduce is one pass": (Collective, "num_passes", 1),
    "encoding is free": (Collective, "coded_nbytes", lambda _self, nbytes, _ranks: ([], [nbytes])),
    "latency is forgotten": (transfers, "latency_s", lambda *_: 0.0),
    "nodes hold one rank": (Cluster, "local_ranks", lambda _self, _ranks: 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_error_is_found(fault, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    assert wrong_cases()


def test_what_is_coded_follows_from_the_collective():
    def coded(collective, costs):
        found = transfer(collective, 8 * MB, costs=costs).phases(ONE_EACH, 4)
        return found.encode_s / US, found.decode_s / US

    counting = replace(EIGHT_BIT, encode=Line(1 * US, 1e-12), decode=Line(10 * US, 1e-12))
    # 1 and 10 per call, and 8 for 8 MB
    assert coded(GATHER, counting) == pytest.approx((1 + 2, 10 + 8))
    assert coded(SCATTER, counting) == pytest.approx((1 + 8, 10 + 8))
    assert coded(Collective.ALL_TO_ALL, counting) == pytest.approx((1 + 8, 10 + 8))
    assert coded(REDUCE, counting) == pytest.approx((2 + 10, 20 + 16))
    assert coded(REDUCE, UNCODED) == (0, 0)


def test_the_costs_of_a_machine_are_counted_per_pass():
    transport = Transport(
        sizes_s=1e-3, payload_s=2e-3, unready_s=4e-3, host_s_per_byte=1e-9, efficiency=0.5,
        rest={"it": Line(8e-3)},
    )  # fmt: skip
    with_sizes = replace(EIGHT_BIT, has_sizes=True)
    for collective, passes in ((SCATTER, 1), (REDUCE, 2)):
        one = transfer(collective, 4 * MB, costs=with_sizes, transport=transport)
        found = one.phases(ONE_EACH, 4)
        sent = one.sent(ONE_EACH, 4)
        assert sent == Traffic(0.75 * MB, 0.0, 0.75 * MB)
        assert found.sizes_s == pytest.approx(passes * (1e-3 + 30 * US))
        # at half of 1 MB/ms, and 1 ns of host per byte
        assert found.payload_s == pytest.approx(passes * (2e-3 + 30 * US + 1.5e-3 + 0.75e-3))
        assert found.rest_s == 8e-3
        known = replace(one, costs=EIGHT_BIT).phases(ONE_EACH, 4)
        assert known.sizes_s == 0
        assert known.payload_s - found.payload_s == pytest.approx(4e-3)


def test_what_leaves_a_node_is_of_all_its_ranks_all_passes_and_all_collectives():
    def leaving(one):
        return one.leaving_nbytes(NODES_OF_8, 16) / MB

    # half of 2 MB for each of 8 places, at 8 bits a quarter of it
    assert leaving(hierarchical("w", GATHER, 16 * MB, 8)[0]) == pytest.approx(8)
    coded = hierarchical("g", SCATTER, 16 * MB, 8, within=EIGHT_BIT, between=EIGHT_BIT)
    assert [leaving(one) for one in coded] == pytest.approx([0, 2])
    # a ring leaves the node once with 15 of 16 MB, and an all-reduce goes round twice
    assert leaving(transfer(GATHER, 16 * MB, count=3)) == pytest.approx(3 * 15)
    assert leaving(transfer(REDUCE, 16 * MB)) == pytest.approx(2 * 15)


def test_a_stage_between_nodes_costs_nothing_where_there_is_one_node():
    within, between = hierarchical("g", SCATTER, 16 * MB, 8, within=EIGHT_BIT, between=FOUR_BIT)
    assert between.phases(NODES_OF_8, 8).total_s == 0
    assert within.phases(NODES_OF_8, 8).total_s > 0


def test_sums_of_encoded_values_are_pairwise_and_everything_else_that_can_be_is_a_ring():
    assert transfer(SCATTER, 1.0).used_pattern is Pattern.RING
    assert transfer(GATHER, 1.0, costs=FOUR_BIT).used_pattern is Pattern.RING
    assert transfer(SCATTER, 1.0, costs=FOUR_BIT).used_pattern is Pattern.PAIRWISE
    assert transfer(Collective.ALL_TO_ALL, 1.0).used_pattern is Pattern.PAIRWISE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"collective": SCATTER, "costs": FOUR_BIT, "pattern": Pattern.RING}, "is pairwise"),
        ({"collective": Collective.ALL_TO_ALL, "pattern": Pattern.RING}, "not a ring"),
        ({"nbytes": -1.0}, "from 0"),
        ({"nbytes": float("nan")}, "from 0"),
        ({"overlap": 1.5}, "from 0 to 1"),
        ({"count": 0}, "at least, not 0"),
    ],
)
def test_what_no_collective_does_is_refused(changes, words):
    with pytest.raises(SpecError, match=words):
        Transfer(**{"name": "it", "collective": GATHER, "nbytes": 1.0, **changes})


def test_costs_are_fitted_to_measurements():
    points = [(n, 2e-5 + 1e-11 * n) for n in (1 * MB, 16 * MB)]
    fixed = CodecCosts.fit(points, points, 4.0, has_sizes=False)
    assert fixed.encode.at(4 * MB) == pytest.approx(6e-5)
    assert (fixed.ratio.at(7), fixed.ratio.is_extrapolated(7), fixed.has_sizes) == (
        4.0,
        False,
        False,
    )
    by_rows = CodecCosts.fit(points, points, {10.0: 5.0, 1000.0: 20.0})
    assert (by_rows.ratio.at(100), by_rows.has_sizes) == (pytest.approx(10.0), True)
