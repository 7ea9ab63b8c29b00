"""Exchanges among ranks on nodes: the same bytes by processes and within one, and failing together."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tersor.comm import Collective, Exchange, LocalRanks, Place, RankLevels
from tersor.comm.levels import check_ranks_per_node
from tersor.errors import ExchangeError, SpecError
from tests.sites.ranks import Failure, returned, run_ranks, wait_for_all
from tests.sites.shards.fsdp_rank import message_of

CPU = torch.device("cpu")


def test_ranks_of_a_node_follow_each_other():
    place = Place(rank=4, num_nodes=2, ranks_per_node=3)
    assert (place.world_size, place.node, place.local, place.is_two_level) == (6, 1, 1, True)
    assert place.ranks("all") == [0, 1, 2, 3, 4, 5]
    assert place.ranks("node") == [3, 4, 5]
    assert place.ranks("across") == [1, 4]


@pytest.mark.parametrize(("num_nodes", "per_node"), [(1, 4), (4, 1), (1, 1)])
def test_one_node_or_one_rank_per_node_is_one_level(num_nodes, per_node):
    places = LocalRanks(num_nodes, per_node).places
    assert [place.rank for place in places] == list(range(num_nodes * per_node))
    assert not any(place.is_two_level for place in places)


def every_collective(place: Place) -> Exchange[list[torch.Tensor]]:
    """Take part in both kinds on all levels; return all that was received."""
    found = []
    for level in ("all", "node", "across"):
        num_peers = len(place.ranks(level))
        for dtype in (torch.uint8, torch.bfloat16):
            values = torch.arange(num_peers * 3) + 40 * place.rank
            for kind in ("all_to_all", "all_gather"):
                sent = values.to(dtype)[: None if kind == "all_to_all" else 3]
                received = torch.full((num_peers, 3), 255, dtype=dtype)
                yield Collective(kind, level, received, sent, received.nbytes)
                found.append(received)
            # what is sent lies in what is received
            received = torch.full((num_peers, 3), 255, dtype=dtype)
            own = received[place.ranks(level).index(place.rank)]
            own.copy_(values[:3])
            yield Collective("all_gather", level, received, own, received.nbytes)
            found.append(received)
    return found


def one_failing(place: Place) -> Exchange[None]:
    received = torch.zeros(place.world_size)
    yield Collective("all_gather", "all", received, torch.ones(1), 16)
    if place.rank == 2:
        raise ValueError("out of luck")
    # rank 0 waits for rank 2, ranks 1 and 3 do not
    yield Collective("all_gather", "across", torch.zeros(2), torch.ones(1), 8)
    yield Collective("all_gather", "all", received, torch.ones(1), 16)


def outlives_its_world(rank: int) -> str:
    """Close levels of a world that ended, in another one."""
    levels = RankLevels(None, 1, CPU)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    levels.close()
    return message_of(lambda: levels.elementwise_max([rank]))


def test_levels_of_a_world_that_ended_are_closed_quietly():
    for message in returned(run_ranks(outlives_its_world, 2)):
        assert message == "ExchangeError: this exchange failed or was closed before; make a new one"


def one_without_memory(place: Place) -> Exchange[None]:
    yield Collective("all_gather", "all", torch.zeros(place.world_size), torch.ones(1), 16)
    if place.rank == 1:
        # as torch's allocator of CPU memory raises it
        raise RuntimeError("can't allocate memory: you tried to allocate 9 bytes")
    yield Collective("all_gather", "node", torch.zeros(2), torch.ones(1), 8)
    yield Collective("all_gather", "all", torch.zeros(place.world_size), torch.ones(1), 16)


def on_ranks(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        RankLevels(None, 3, CPU)
    except SpecError as error:
        found["unequal nodes"] = str(error)
    levels = RankLevels(None, 2, CPU)
    found["received"] = levels.run(every_collective(levels.place))
    found["elementwise_max"] = levels.elementwise_max([rank, -rank, 7])
    try:
        levels.run(one_failing(levels.place))
    except (ExchangeError, ValueError) as error:
        found["failed"] = type(error).__name__, str(error)
    try:
        levels.elementwise_max([0])
    except ExchangeError as error:
        found["afterwards"] = str(error)
    levels.close()
    # groups of the same ranks, made after those failed
    again = RankLevels(None, 2, CPU)
    found["again"] = again.run(every_collective(again.place))
    try:
        again.run(one_without_memory(again.place), "mean of a bucket")
    except (ExchangeError, RuntimeError) as error:
        found["without memory"] = type(error).__name__, str(error)
    again.close()
    return found


@pytest.fixture(scope="module")
def four_ranks() -> list[dict[str, Any]]:
    return returned(run_ranks(on_ranks, 4))


def test_one_process_receives_the_bytes_that_four_do(four_ranks):
    ranks = LocalRanks(2, 2)
    local = ranks.run([every_collective(place) for place in ranks.places])
    for found, expected in zip(local, four_ranks, strict=True):
        assert len(found) == 18
        for name in ("received", "again"):
            for ours, theirs in zip(found, expected[name], strict=True):
                assert ours.dtype == theirs.dtype
                assert torch.equal(ours, theirs)
    # rank 2 is first in node 1: it gets the first part of what ranks 2 and 3 send there
    assert local[2][6].tolist() == [[80, 81, 82], [120, 121, 122]]
    # across nodes it meets rank 0, and is the second there
    assert local[2][12].tolist() == [[3, 4, 5], [83, 84, 85]]
    assert local[2][13].tolist() == [[0, 1, 2], [80, 81, 82]]


def test_ranks_learn_the_largest_numbers(four_ranks):
    assert [found["elementwise_max"] for found in four_ranks] == [[3, 0, 7]] * 4


def test_nodes_of_different_sizes_are_refused(four_ranks):
    for found in four_ranks:
        assert found["unequal nodes"] == (
            "ranks_per_node must divide the 4 ranks into equal nodes, not be 3"
        )


def test_a_failing_rank_ends_the_exchange_of_all_and_says_why(four_ranks):
    assert four_ranks[2]["failed"] == ("ValueError", "out of luck")
    for rank in (0, 1, 3):
        name, message = four_ranks[rank]["failed"]
        assert name == "ExchangeError"
        assert message.startswith("rank 2 failed: ValueError: out of luck; this ended")
    for found in four_ranks:
        assert found["afterwards"] == "this exchange failed or was closed before; make a new one"


def test_a_rank_without_memory_keeps_its_error_and_tells_the_others(four_ranks):
    words = "can't allocate memory: you tried to allocate 9 bytes"
    assert four_ranks[1]["without memory"] == ("RuntimeError", words)
    for rank in (0, 2, 3):
        assert four_ranks[rank]["without memory"] == (
            "ExchangeError",
            f"rank 1 failed: RuntimeError: {words}; this ended the mean of a bucket on rank {rank}",
        )


def dies(rank: int) -> tuple[str, float]:
    levels = RankLevels(None, 2, CPU)
    levels.run(every_collective(levels.place))
    wait_for_all(rank)
    if rank == 3:
        os._exit(1)
    began = time.perf_counter()
    try:
        for _ in range(100):
            levels.run(every_collective(levels.place), "mean of a bucket")
    except ExchangeError as error:
        return str(error), time.perf_counter() - began
    return "", 0.0


def test_a_rank_that_dies_ends_all_within_seconds():
    *found, dead = run_ranks(dies, 4)
    assert dead is None
    for result in found:
        assert not isinstance(result, Failure), result.trace
        message, seconds = result
        assert message.startswith("the mean of a bucket failed on rank ")
        assert "a peer left, failed or timed out" in message
        assert seconds < 30


def a_longer_one(place: Place) -> Exchange[None]:
    for _ in range(1 + place.rank):
        yield Collective("all_gather", "all", torch.zeros(2), torch.ones(1), 8)


def another_level(place: Place) -> Exchange[None]:
    level = "node" if place.rank else "across"
    yield Collective("all_gather", level, torch.zeros(1), torch.ones(1), 4)


def another_kind(place: Place) -> Exchange[None]:
    kind = "all_gather" if place.rank else "all_to_all"
    yield Collective(kind, "all", torch.zeros(2), torch.ones(1 if place.rank else 2), 8)


def another_size(place: Place) -> Exchange[None]:
    yield Collective("all_gather", "all", torch.zeros(8), torch.ones(4 if place.rank else 1), 32)


@pytest.mark.parametrize("exchange", [a_longer_one, another_level, another_kind, another_size])
def test_ranks_that_diverge_are_an_error(exchange):
    ranks = LocalRanks(1, 2)
    with pytest.raises(ExchangeError, match="ranks take part in different collectives"):
        ranks.run([exchange(place) for place in ranks.places])


@pytest.mark.parametrize("wrong", [0, -2, 3, 8, 2.0, True, "2"])
def test_ranks_per_node_divides_the_ranks(wrong):
    check_ranks_per_node(2, 4)
    with pytest.raises(SpecError, match="must divide the 4 ranks into equal nodes"):
        check_ranks_per_node(wrong, 4)
