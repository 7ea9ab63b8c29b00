"""Steps of up to 4,096 ranks take what a calculation by hand says, and the site sends what flows say."""

from __future__ import annotations

import pytest
import torch
from msgspec import structs

from tersor.bench.planning.blocks import plan_block, sweep_block
from tersor.bench.planning.tables import (
    break_evens,
    plan_cells,
    plan_columns,
    plan_row,
    ranks_figure,
)
from tersor.bench.shards.contenders import VARIANTS, described
from tersor.bench.shards.planning.fit import fit_rows
from tersor.bench.shards.planning.flows import flows
from tersor.bench.shards.planning.planner import SHARDS_PLANNER
from tersor.bench.shards.planning.shapes import measured_shape, parse_shape, root_weights
from tersor.errors import SpecError
from tersor.planning import Cluster, Scope, Transfer, advise
from tersor.sites.shards import LocalShards, Weights
from tersor.workloads.models.gpt import PRESETS, Gpt, GptShape
from tests.bench.shards.made import made_row as other_row
from tests.bench.shards.planning.made import (
    BY_HAND,
    CODING_S,
    NEAR_S,
    PASS_S,
    ROWS,
    SHAPE,
    TWICE,
    N,
    leaving_by_hand,
)

FIT = fit_rows(ROWS)
DDP = fit_rows(ROWS, wrapper="ddp")
FAST = {"inter": "1000000tbit", "intra": "1000000tbit", "ranks_per_node": 8}
"""Links on which nothing but latency counts."""


def payload_s(said, name, ranks, fit=FIT):
    return fit.model(said).predict(name, ranks).payload_s


def leaving(said, name, ranks, fit=FIT):
    return fit.model(said).leaving_nbytes(name, ranks)


def test_nccl_scatters_once_round_the_ring_and_gloo_twice():
    said = {"ranks_per_node": 2, "backend": "nccl"}
    assert leaving(said, "fsdp-fp32", 4) == pytest.approx(3 * TWICE + 3 * N)
    # headers of TCP are gloo's
    assert leaving(said | {"backend": "gloo"}, "fsdp-fp32", 4) == pytest.approx(
        1.06 * (3 * TWICE + 6 * N), rel=1e-4
    )
    for name in BY_HAND:
        if name not in ("fsdp-fp32", "fsdp-bf16"):
            fit = DDP if name.startswith("ddp") else FIT
            assert leaving(said, name, 4, fit) == pytest.approx(leaving_by_hand(name))


def test_costs_of_gloo_are_not_those_of_nccl():
    said = {**FAST, "latency": "0us", "intra_latency": "0us"}
    assert payload_s(said | {"backend": "nccl"}, "fsdp-4-bit", 4096) < 1e-6
    # 92 values of a module go in 132 bytes as gradients and in 68 as weights, 7 of 8 parts to others
    near_nbytes = N * (132 + 68) / 92 * 7 / 8
    assert payload_s(said, "fsdp-4-bit", 4096) == pytest.approx(
        20 * PASS_S + near_nbytes * NEAR_S, rel=1e-3
    )


@pytest.mark.parametrize("ranks", [16, 512, 4096])
def test_every_module_waits_for_all_messages_of_its_collectives(ranks):
    said = {**FAST, "backend": "nccl", "latency": "10us", "intra_latency": "0us"}
    nodes = ranks // 8
    us = 1e-6
    # 9 rings of gathers and 5 of scatters through all nodes; a link within a node is free, and left out
    plain_s = payload_s(said, "fsdp-fp32", ranks)
    assert plain_s == pytest.approx((9 + 5) * nodes * 10 * us, rel=1e-3)
    # 5 gathers and 5 all-to-alls, each with a message to every other node
    node_s = payload_s(said, "fsdp-4-bit-node", ranks)
    assert node_s == pytest.approx((5 + 5) * (nodes - 1) * 10 * us, rel=1e-3)
    # the mean of DDP's two buckets is gathered as well
    ddp_s = payload_s(said, "ddp-4-bit", ranks, DDP)
    assert ddp_s == pytest.approx((2 + 2) * (nodes - 1) * 10 * us, rel=1e-3)


def test_shards_of_many_ranks_are_padded_to_whole_groups():
    said = {"ranks_per_node": 8, "backend": "nccl"}
    # 1.87 million weights in 5 modules: 92 values of each for 4,096 ranks, in groups of 128 and 4 bytes
    sent = leaving(said, "fsdp-4-bit", 4096)
    assert sent == pytest.approx(N * 68 / 92 * 2 * 511 / 512)


def test_a_step_grows_with_the_model_unless_it_is_described():
    small, large = (FIT.model({"parameters": text, "backend": "nccl"}) for text in ("2M", "6M"))
    times = parse_shape("6M").num_parameters / PRESETS["2M"].shape.num_parameters
    assert large.step("fsdp-fp32", 8).compute_s == pytest.approx(
        times * small.step("fsdp-fp32", 8).compute_s
    )
    assert FIT.model({}).step("fsdp-bf16", 8).compute_s == pytest.approx(0.3, rel=1e-3)
    described = FIT.model({"parameters": "6.7B", "compute_ms": 700, "coding_gbps": 1000.0})
    assert described.step("fsdp-bf16", 8).compute_s == 0.7
    # one node of 8: a pass over an eighth of 4 bytes and over all for weights, two over all for gradients
    alone = {"ranks_per_node": 8, "coding_gbps": 1000.0}
    coding_s = FIT.model(alone).predict("fsdp-4-bit", 8).coding_s
    assert coding_s == pytest.approx((0.5 + 4 + 8) * N * 1e-12)
    measured_s = FIT.model({"ranks_per_node": 8}).predict("fsdp-4-bit", 8).coding_s
    assert measured_s == pytest.approx((0.5 + 4 + 8) * N * CODING_S)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_computing_of_a_far_larger_model_is_asked_for(backend):
    described = {"parameters": "6.7B", "backend": backend}
    with pytest.raises(
        SpecError, match=r"6,658 million weights .* 2 million .*; give .*--compute-ms"
    ):
        FIT.model(described)
    assert FIT.model({**described, "compute_ms": 0}).step("fsdp-bf16", 8).compute_s == 0


def test_computing_hides_as_much_as_was_measured_or_said():
    assert DDP.model({}).step("ddp-fp32", 8).transfers[0].overlap == pytest.approx(0.1, abs=1e-3)
    assert DDP.model({"overlap": 0.5}).step("ddp-fp32", 8).transfers[0].overlap == 0.5


def test_a_share_of_a_link_may_be_said():
    full, half = (
        {**FAST, "inter": "1gbit", "backend": "nccl"} | more for more in ({}, {"efficiency": 0.5})
    )
    assert payload_s(half, "fsdp-fp32", 16) == pytest.approx(
        2 * payload_s(full, "fsdp-fp32", 16), rel=1e-2
    )


def test_the_advice_changes_with_the_link_and_names_the_best_in_float32():
    said = {"ranks_per_node": 8, "backend": "nccl", "compute_ms": 50.0}
    slow, fast = (advise(FIT.model(said | {"inter": bits}), 64) for bits in ("1gbit", "400gbit"))
    assert slow.best.name == "fsdp-4-bit"
    assert fast.best.name == "fsdp-bf16"
    assert "of those that keep a bound fsdp-two-hop is best" in slow.reason
    assert dict(FIT.model({}).methods) == {
        "fsdp-fp32": True, "fsdp-bf16": None, "fsdp-two-hop": True, "fsdp-4-bit": None,
        "fsdp-4-bit-node": None,
    }  # fmt: skip


def test_tables_lines_and_figures_hold_every_way():
    model = FIT.model({"ranks_per_node": 2, "latency": "0us", "intra_latency": "0us"})
    cells = {line[1]: line for line in plan_cells(SHARDS_PLANNER, model, 4)}
    assert list(cells) == [name for name in BY_HAND if name.startswith("fsdp")]
    assert {len(line) for line in cells.values()} == {len(plan_columns(SHARDS_PLANNER))}
    mbytes = 1.06 * (3 * TWICE + 6 * N) / 1e6
    assert cells["fsdp-fp32"][2] == f"{mbytes:.3g}"
    assert cells["fsdp-two-hop"][-1] == "in float32"
    found = model.predict("fsdp-4-bit", 4)
    line = plan_row(SHARDS_PLANNER, model, found, advise(model, 4), break_evens(model, 4))
    parts_s = sum(line[part][name] for part in ("weights", "gradients") for name in line[part])
    assert parts_s == pytest.approx(found.transfers_s)
    assert (line["site"], line["backend"], line["num_weights"]) == ("shards", "gloo", N)
    assert "fsdp-4-bit-node" in ranks_figure(model, (4, 8, 64))


def test_a_page_shows_plans_and_sweeps():
    options = {
        "ranks": "64",
        "ranks_per_node": "8",
        "parameters": "1.3B",
        "backend": "nccl",
        "compute_ms": "0",
    }
    plan = plan_block(SHARDS_PLANNER, ROWS, {**options, "wrapper": "ddp"})
    assert "| 64 | ddp-powersgd |" in plan
    sweep = sweep_block(SHARDS_PLANNER, ROWS, {**options, "sweep": "1gbit..400gbit"})
    assert "| 1gbit | 64 | fsdp-4-bit |" in sweep
    with pytest.raises(SpecError, match="not 'batch'"):
        plan_block(SHARDS_PLANNER, ROWS, {"ranks": "4", "batch": "4"})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"parameters": "huge"}, "one of 2M, .* or a number of weights such as 3B, not 'huge'"),
        ({"parameters": 7}, "not '7'"),
        ({"backend": "mpi"}, "backend is gloo or nccl, not 'mpi'"),
        ({"coding_gbps": 0}, "coding_gbps must be above 0"),
        ({"batch": 4}, "a cluster has no 'batch'; it may have .*parameters"),
        ({"overlap": 2}, "overlap must be a number from 0 to 1, not 2"),
    ],
)
def test_what_cannot_be_meant_is_refused(said, words):
    with pytest.raises(SpecError, match=words):
        FIT.model(said)


def test_nodes_that_are_not_full_have_no_hops():
    model = FIT.model({"ranks_per_node": 8})
    with pytest.raises(SpecError, match="12 ranks do not fill nodes of 8"):
        model.predict("fsdp-4-bit", 12)


def test_a_reader_is_told_what_is_of_the_measured_machine():
    def notes(**said):
        return " ".join(FIT.notes(FIT.model(said), [64]))

    assert notes() == ""
    other = notes(parameters="6M", backend="nccl")
    assert "computing (--compute-ms) and coding (--coding-gbps) are of the machine" in other
    assert "coding (--coding-gbps) is of" in notes(backend="nccl", compute_ms=5)
    described = {"backend": "nccl", "compute_ms": 5, "coding_gbps": 100.0, "efficiency": 0.8}
    assert notes(**described) == (
        "computing hides 0% of sending, as with gloo in the rows; --overlap sets another share"
    )
    assert notes(**described, overlap=0.5) == ""


def test_models_are_named_by_their_size():
    assert parse_shape("1.3B") == PRESETS["1.3B"].shape
    for text, count in (("3B", 3e9), ("70b", 70e9), ("123456789", 123456789)):
        assert parse_shape(text).num_parameters == pytest.approx(count, rel=2e-3)
    assert root_weights(PRESETS["125M"].shape) == (50257 + 2048 + 2) * 768
    assert measured_shape(ROWS[0]) == SHAPE
    # a model that no preset has
    assert measured_shape(other_row("fsdp-fp32", 1.0, 2.0, num_values=10**6)).layers == 4


def test_a_plan_says_which_depth_it_took_for_a_model_of_no_preset():
    words = "gpt-own is no preset; it is taken for one of 4 blocks, like the preset nearest in size"
    assert words in fit_rows([structs.replace(row, input="gpt-own") for row in ROWS]).source
    assert "no preset" not in FIT.source


@pytest.mark.parametrize("name", ["fsdp-two-hop", "fsdp-8-bit", "fsdp-4-bit", "fsdp-4-bit-node"])
@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (3, 2), (1, 4), (4, 1)])
def test_ranks_in_one_process_receive_what_the_flows_say(name, nodes, local):
    """The site counts what each level receives; flows know nothing of its code but the size of a row."""
    # the root has as many weights as a block, 781 rows of 64: flows take all modules for equal
    variant, shape = VARIANTS[name], GptShape(3, 64, 2, 31, 748)
    assert root_weights(shape) == shape.num_parameters / 4
    model = Gpt(shape)
    units = [*model.blocks, model]
    # an error of weights that are left to FSDP is none of the site's
    ours = LocalShards(model, units, nodes, local, variant.weights or Weights(), variant.gradients)
    ours.gather()
    ours.stats.weights.volumes.clear()
    ours.stats.weights.volumes.update(
        {k: type(v)() for k, v in ours.stats.gradients.volumes.items()}
    )
    _take_step(ours, model)
    ranks = nodes * local
    cluster = Cluster(ranks_per_node=local, inter_bits_per_s=1e9, intra_bits_per_s=1e9)
    levels = {Scope.ALL: "all", Scope.WITHIN_NODES: "node", Scope.BETWEEN_NODES: "across"}
    for flow in flows(described(variant)[1], shape, cluster, ranks, "gloo"):
        if not flow.is_ours or flow.name == "weights, all-gather within nodes":
            continue
        one = Transfer(
            name=flow.name, collective=flow.collective, scope=flow.scope,
            nbytes=flow.num_values * flow.value_nbytes,
        )  # fmt: skip
        traffic = getattr(ours.stats, flow.part).volumes[levels[flow.scope]]
        sent = one.sent(cluster, ranks).rank_nbytes
        # FSDP pads 64 rows to 66 where 6 ranks share them
        assert traffic.encoded_nbytes == pytest.approx(sent, rel=66 / 64 - 1)


def _take_step(ours: LocalShards, model: Gpt) -> None:
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    for rank in range(ours.world_size):
        tokens = torch.randint(0, 256, (1, 31), generator=torch.Generator().manual_seed(rank))
        model(tokens).square().mean().backward()
        ours.collect(rank)
    ours.reduce()
    optimizer.step()
    ours.gather()
