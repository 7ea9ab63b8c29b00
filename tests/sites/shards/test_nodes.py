"""Which ranks share a node, as ranks find it out by themselves."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch.distributed as dist

from tersor.sites.shards.nodes import found_ranks_per_node
from tests.sites.ranks import returned, run_ranks
from tests.sites.shards.fsdp_rank import message_of

NUM_RANKS = 4
NOT_FOUND = (
    "SpecError: ranks_per_node cannot be found: nodes hold different numbers of ranks, or their ranks do "
    "not follow each other; give ranks_per_node=1 for one hop between all ranks"
)
WORLDS: dict[str, tuple[list[Any], list[str], str, Any]] = {
    # GROUP_RANK of each rank, its host, LOCAL_WORLD_SIZE, and what is found
    "torchrun": ([0, 0, 1, 1], ["a", "a", "b", "b"], "2", 2),
    "two agents on one host": ([0, 0, 1, 1], ["a"] * 4, "2", 2),
    "a part of each of two nodes of four": ([0, 0, 1, 1], ["a", "a", "b", "b"], "4", 2),
    "one rank of each of four nodes": ([0, 1, 2, 3], ["a", "b", "c", "d"], "4", 1),
    "one node": ([0] * 4, ["a"] * 4, "4", 4),
    "no torchrun": ([None] * 4, ["a", "a", "b", "b"], "", 2),
    "torchrun on some": ([0, None, 0, 0], ["a", "a", "b", "b"], "4", 2),
    "odd values": (["x", "x", "", ""], ["a"] * 4, "many", 2),
    "the same number everywhere": ([0] * 4, ["a", "a", "b", "b"], "4", 2),
    "unequal nodes": ([0, 0, 0, 1], ["a", "a", "a", "b"], "1", NOT_FOUND),
    "nodes in turn": ([0, 1, 0, 1], ["a", "b", "a", "b"], "2", NOT_FOUND),
}


def _found(rank: int) -> dict[str, Any]:
    found = {}
    for name, (numbers, hosts, local_size, _) in WORLDS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda host=hosts[rank]: host)
            patch.setitem(os.environ, "LOCAL_WORLD_SIZE", local_size)
            patch.delenv("GROUP_RANK", raising=False)
            if numbers[rank] is not None:
                patch.setenv("GROUP_RANK", str(numbers[rank]))
            answers: list[Any] = []
            words = message_of(lambda: answers.append(found_ranks_per_node("auto", None)))  # noqa: B023
            found[name] = answers[0] if answers else words
    pair = dist.new_group([1, 2])
    if rank in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "ab"[rank - 1])
            patch.setenv("LOCAL_WORLD_SIZE", "2")
            found["a pair"] = found_ranks_per_node("auto", pair)
    return found


@pytest.fixture(scope="module")
def four_ranks() -> list[dict[str, Any]]:
    return returned(run_ranks(_found, NUM_RANKS))


@pytest.mark.parametrize("name", WORLDS)
def test_ranks_find_out_who_shares_their_node(four_ranks, name):
    assert [found[name] for found in four_ranks] == [WORLDS[name][3]] * NUM_RANKS


def test_a_process_group_of_one_rank_per_node_has_nodes_of_one(four_ranks):
    assert [found.get("a pair") for found in four_ranks] == [None, 1, 1, None]
