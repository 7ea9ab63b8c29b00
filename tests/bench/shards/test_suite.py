"""Trainings of real ranks with several methods of exchange, planned and measured."""

from __future__ import annotations

import socket
from dataclasses import replace
from threading import Thread

import pytest

from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.core.rows import ShardRow
from tersor.bench.shards.suite import ShardsConfig, _Suite, run_shards
from tersor.errors import BackendUnavailableError, SpecError
from tersor.workloads.network import Bandwidth, opening
from tersor.workloads.network.counters import sent_nbytes


def _allowed() -> bool:
    try:
        with opening.open_network(1):
            return True
    except BackendUnavailableError:
        return False


@pytest.mark.parametrize(
    "change",
    [{"num_ranks": 1}, {"num_ranks": 65}, {"ranks_per_node": 0}, {"ranks_per_node": 4},
     {"ranks_per_node": 3}, {"batch": 3}, {"preset": "huge"}, {"variants": ("zip",)}, {"variants": ()},
     {"rounds": 0}, {"bandwidths": ()}],
)  # fmt: skip
def test_an_impossible_plan_is_refused(change):
    with pytest.raises(SpecError):
        ShardsConfig(**change)


def test_float32_of_the_same_wrapper_is_always_measured():
    assert ShardsConfig(variants=("ddp-4-bit",)).variants == ("ddp-fp32", "ddp-4-bit")
    assert ShardsConfig().batch == 4


def test_the_kernel_counts_what_interfaces_send():
    before, nbytes = sent_nbytes()["lo"], 200_000
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
            sender = Thread(target=client.sendall, args=(bytes(nbytes),))
            sender.start()
            left = nbytes
            while left:
                left -= len(peer.recv(left))
            sender.join()
    assert sent_nbytes()["lo"] - before >= nbytes


def test_links_carry_the_bits_that_are_promised():
    """Read from the links' counters, with 2 nodes of 2 ranks and a small model."""
    if not _allowed():
        pytest.skip("needs namespaces and tbf")
    variants = ("fsdp-fp32", "fsdp-two-hop", "fsdp-4-bit-node", "ddp-4-bit")
    config = replace(ShardsConfig(variants=variants), preset="2M", rounds=1)
    outcome = run_shards(config)
    rows = {row.codec: row for row in outcome.rows if isinstance(row, ShardRow)}
    assert not outcome.refusals
    assert list(rows) == list(config.variants)
    # 4 + 32 / 2048 bits, shards padded to whole groups, and headers of TCP: within a tenth above
    assert 4.0156 <= rows["fsdp-4-bit-node"].bits_per_weight < 4.0156 * 1.1
    assert 4.25 <= rows["fsdp-4-bit-node"].bits_per_gradient < 4.25 * 1.1
    # 8 + 32 / 128 bits: each of a node's 2 ranks sends half of its gradient to the other
    gradients = rows["fsdp-4-bit-node"].shards.gradients
    assert gradients is not None
    within = 8 * gradients.node_nbytes / (2 * rows["fsdp-4-bit-node"].num_values)
    assert 8.25 <= within < 8.25 * 1.1
    # once for the sums, once for the mean
    assert 2 * 4.25 <= rows["ddp-4-bit"].bits_per_gradient < 2 * 4.25 * 1.1
    assert 32 <= rows["fsdp-two-hop"].bits_per_gradient < 32 * 1.1
    # a ring over 4 ranks takes 3 shards out of a node where 2 would do, in forward and in backward
    assert 96 * 0.9 <= rows["fsdp-fp32"].bits_per_weight < 96 * 1.1
    done = frozenset(row.key for row in outcome.rows)
    assert run_shards(config, done=done).rows == []


def test_loopback_is_measured_once_and_every_row_says_so(monkeypatch):
    def refuse():
        raise BackendUnavailableError("network namespaces need root")

    monkeypatch.setattr(opening, "check_available", refuse)
    links = (Bandwidth(10**8), Bandwidth(10**9))
    config = ShardsConfig(bandwidths=links, variants=("ddp-fp32", "ddp-powersgd"))
    outcome = run_shards(config.smoke())
    assert [row.codec for row in outcome.rows] == ["ddp-fp32", "ddp-powersgd"]
    assert all("not throttled" in row.note for row in outcome.rows)
    assert any("need root" in note for note in outcome.notes)


def _answer(loss: float) -> dict[str, object]:
    counts = {"lo": 10, "link0": 20}
    nbytes = {"weights": counts, "gradients": counts}
    exchange = {"seconds": {"weights": 0.1, "gradients": 0.2}, "nbytes": nbytes, "coding": 0.0}
    step = {"seconds": 1.0, "nbytes": counts}
    return {"losses": [loss], "num_weights": 1, "steps": [step], "exchanges": [exchange]}


@pytest.mark.parametrize("loss", [6.0, float("nan"), float("inf")])
def test_a_training_that_leaves_the_losses_of_float32_is_refused(loss):
    config = ShardsConfig(variants=("fsdp-4-bit", "fsdp-bf16"))
    answers = [
        {"fsdp-fp32": _answer(5.0), "fsdp-bf16": _answer(loss), "fsdp-4-bit": _answer(loss)}
        for _ in range(4)
    ]
    outcome = SuiteOutcome()
    rows = list(_Suite(config, "namespaces").rows(Bandwidth(10**9), answers, outcome))
    assert [row.codec for row in rows] == ["fsdp-fp32"]
    assert len(outcome.refusals) == 1
    assert outcome.refusals[0].startswith("fsdp-4-bit is refused")
    # two nodes, each counted once
    assert rows[0].shards.gradients.link_nbytes == 40
    assert rows[0].shards.exchange_s.p50 == pytest.approx(0.3)
