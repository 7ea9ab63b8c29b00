from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tersor.bench.embeddings.planning.description import Workload
from tersor.errors import SpecError
from tersor.planning import Cluster, Line, Transport
from tersor.policy import predicted_speedup
from tests.bench.embeddings.planning.made import FAST, GBIT, SMALL, model, profile

RANKS = (2, 4, 8, 64, 512, 4096)


def test_without_latency_and_fixed_costs_the_speedup_is_that_of_the_choice_of_codecs():
    codec = profile("some", 10.0, Line(0.0, 1 / 100e9), Line(0.0, 1 / 50e9))
    made = model(codec)
    # one rank's own share never travels, which the other formula does not know
    for ranks, tolerance in ((4096, 1e-3), (64, 2e-2)):
        found = made.predict("float32", ranks).transfers_s / made.predict("some", ranks).transfers_s
        wanted = predicted_speedup(
            ratio=10.0, encode_gbps=100.0, decode_gbps=50.0, bandwidth_gbit_s=8.0
        )
        assert found == pytest.approx(wanted, rel=tolerance)


def test_every_part_of_the_formula_is_counted():
    coded = profile("x", 2.0, Line(1e-3, 1e-9), Line(2e-3, 2e-9))
    transport = Transport(
        sizes_s=3e-3, payload_s=4e-3, host_s_per_byte=1e-9, efficiency=0.5,
        rest={"forward": Line(5e-3), "backward": Line(6e-3)},
    )  # fmt: skip
    cluster = Cluster(inter_bits_per_s=8 * GBIT, intra_bits_per_s=1000 * GBIT, inter_latency_s=1e-4)
    made = model(
        coded, transport=transport, cluster=cluster, compute=Line(0.1, 1e-6), allreduce_nbytes=1e6,
        workload=Workload(batch=None, batch_per_rank=1000, overlap=0.5),
    )  # fmt: skip
    found = made.predict("x", 4)
    forward = found.phases["forward"]
    assert forward.encode_s == pytest.approx(2e-3)
    assert forward.decode_s == pytest.approx(4e-3)
    assert forward.sizes_s == pytest.approx(3e-3 + 3e-4)
    # half a MB, three quarters of which leave, at half of 1 GB/s, and 1 ns of host per byte
    assert forward.payload_s == pytest.approx(4e-3 + 3e-4 + 0.75e-3 + 0.375e-3)
    assert forward.rest_s == 5e-3
    assert found.phases["backward"].total_s - forward.total_s == pytest.approx(1e-3)
    assert found.compute_s == pytest.approx(0.101)
    assert found.hidden_s == pytest.approx(forward.payload_s)
    assert found.shared_s == pytest.approx(2 * 0.75 * 1e-3 + 2 * 4e-4)
    assert found.step_s == pytest.approx(
        0.101 + found.transfers_s - found.hidden_s + found.shared_s
    )


def test_without_sizes_the_payload_waits_for_the_slowest_rank():
    transport = Transport(sizes_s=3e-3, payload_s=4e-3, unready_s=2e-3)
    exchanged, known = (
        profile(name, 2.0, Line(), Line(), has_sizes=has_sizes)
        for name, has_sizes in (("exchanged", True), ("known", False))
    )
    made = model(exchanged, known, transport=transport)
    exchanged, known = (made.predict(name, 4).phases["forward"] for name in ("exchanged", "known"))
    assert exchanged.sizes_s - known.sizes_s == pytest.approx(exchanged.sizes_s)
    assert known.payload_s - exchanged.payload_s == pytest.approx(2e-3)


def test_the_share_that_leaves_a_node_goes_over_a_link_its_ranks_share():
    cluster = Cluster(
        ranks_per_node=4, inter_bits_per_s=8 * GBIT, intra_bits_per_s=80 * GBIT,
        inter_latency_s=1e-3, intra_latency_s=1e-5,
    )  # fmt: skip
    made = model(cluster=cluster)
    # within a node: 3/4 of 1 MB at 10 GB/s, and 3 messages
    assert made.predict("float32", 4).phases["forward"].payload_s == pytest.approx(75e-6 + 30e-6)
    # two nodes: half of it leaves, at a quarter of 1 GB/s, with 4 messages more
    assert made.predict("float32", 8).phases["forward"].payload_s == pytest.approx(
        2e-3 + 4e-3 + 30e-6
    )


def test_a_rank_on_a_node_that_is_not_full_sends_most_messages_out():
    cluster = Cluster(
        ranks_per_node=8, inter_bits_per_s=1e18, intra_bits_per_s=1e18, inter_latency_s=1e-3
    )
    made = model(cluster=cluster)
    for ranks, num_far in ((8, 0), (9, 8), (15, 8), (16, 8), (17, 16)):
        found = made.predict("float32", ranks).phases["forward"].payload_s
        assert found == pytest.approx(num_far * 1e-3, rel=1e-6, abs=1e-9), ranks
    # a ring goes into every node once, and round twice
    ring = replace(made, allreduce_nbytes=1.0)
    for ranks, num_nodes in ((8, 0), (9, 2), (16, 2), (17, 3)):
        assert ring.predict("float32", ranks).shared_s == pytest.approx(
            2 * num_nodes * 1e-3, rel=1e-6, abs=1e-9
        )


@given(ranks=st.integers(2, 99), per_node=st.integers(1, 16))
def test_no_node_has_more_to_send_out_than_a_full_one(ranks, per_node):
    cluster = Cluster(ranks_per_node=per_node, inter_bits_per_s=1.0, intra_bits_per_s=1.0)
    full, fewest = cluster.local_ranks(ranks), cluster.fewest_local_ranks(ranks)
    assert fewest * (ranks - fewest) <= full * (ranks - full)
    assert full * (cluster.num_nodes(ranks) - 1) + fewest == ranks


def test_nothing_hides_longer_than_ranks_compute():
    made = model(compute=Line(1e-4), workload=Workload(batch_per_rank=1000, overlap=1.0))
    assert made.predict("float32", 8).hidden_s == 1e-4


@given(
    low=st.floats(1e6, 1e13), factor=st.floats(1.0, 1e3), ranks=st.sampled_from(RANKS),
    per_node=st.sampled_from((1, 4, 8)),
)  # fmt: skip
def test_more_bandwidth_never_takes_longer(low, factor, ranks, per_node):
    made = model(SMALL)
    made = replace(made, cluster=replace(made.cluster, ranks_per_node=per_node))
    for name in made.profiles:
        slow, fast = (made.at_bandwidth(b, ranks).predict(name, ranks) for b in (low, low * factor))
        assert fast.step_s <= slow.step_s


@given(st.floats(1e6, 1e13))
def test_more_samples_or_more_latency_never_take_less(bits):
    made = model(SMALL, bits_per_s=bits)
    more = replace(made, workload=Workload(batch_per_rank=2000))
    far = replace(made, cluster=replace(made.cluster, inter_latency_s=1e-5))
    for other in (more, far):
        assert other.predict("small", 64).step_s > made.predict("small", 64).step_s


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("overlap", [0.0, 0.7])
def test_steps_take_as_long_at_break_even_and_codecs_pay_below_it_only(ranks, overlap):
    made = model(
        FAST, SMALL, compute=Line(2e-5), workload=Workload(batch_per_rank=1000, overlap=overlap)
    )
    for name in ("fast", "small"):
        stops = made.break_even(name, ranks)

        def gain(bits, name=name):
            there = made.at_bandwidth(bits, ranks)
            return there.predict("float32", ranks).step_s - there.predict(name, ranks).step_s

        assert gain(stops) == pytest.approx(0.0, abs=1e-12)
        assert gain(stops / 1.1) > 0 > gain(stops * 1.1)


def test_break_even_says_never_and_always():
    worse = profile("worse", 1.0, Line(1e-6), Line())
    same = profile("same", 2.0, Line(), Line(), has_sizes=False)
    made = model(worse, same)
    assert made.break_even("worse", 8) == 0.0
    assert made.break_even("same", 8) is None


def test_a_batch_of_all_ranks_gives_each_its_share():
    made = replace(model(), workload=Workload(batch=8000))
    assert made.predict("float32", 8).transfers_s == model().predict("float32", 8).transfers_s
    with pytest.raises(SpecError, match="cannot be shared by 4096 ranks"):
        replace(made, workload=Workload(batch=512)).predict("float32", 4096)


def test_one_rank_and_a_model_without_baseline_are_refused():
    with pytest.raises(SpecError, match="2 ranks"):
        model().predict("float32", 1)
    with pytest.raises(SpecError, match="rows of float32"):
        replace(model(FAST), profiles={"fast": FAST})
