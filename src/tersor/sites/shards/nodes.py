"""Which ranks share a node, and connections among them that calls have in common."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from tersor.comm import Exchange, RankLevels, gathered, is_distributed
from tersor.comm.levels import check_ranks_per_node
from tersor.errors import ExchangeError, SpecError

RanksPerNode = int | Literal["auto"]
T = TypeVar("T")


def found_ranks_per_node(wanted: RanksPerNode, group: dist.ProcessGroup | None) -> int:
    """Return how many consecutive ranks share a node; a collective call if it is to be found out.

    Raises:
        SpecError: nodes do not hold equally many, or their ranks do not follow each other.
    """
    world_size = dist.get_world_size(group)
    if wanted != "auto":
        check_ranks_per_node(wanted, world_size)
        return wanted
    every = gathered((os.environ.get("LOCAL_WORLD_SIZE"), socket.gethostname()), group)
    sizes = {size for size, _ in every}
    if len(sizes) == 1 and None not in sizes:
        found = int(sizes.pop())
        if world_size % found == 0:
            return found
    hosts = [host for _, host in every]
    found = hosts.count(hosts[0])
    nodes = [set(hosts[k : k + found]) for k in range(0, world_size, found)]
    if world_size % found or any(len(node) > 1 for node in nodes):
        raise SpecError(
            "ranks_per_node cannot be found: nodes hold different numbers of ranks, or their ranks do not "
            "follow each other; give ranks_per_node=1 for one hop between all ranks"
        )
    return found


class Connection:
    """Ranks on their levels, and how many exchanges they had.

    Attributes:
        levels: of the ranks.
        num_exchanges: since they connected; the same on all ranks.
        has_failed: whether an exchange ended in an error.
    """

    def __init__(self, levels: RankLevels) -> None:
        """Count from zero."""
        self.levels = levels
        self.num_exchanges = 0
        self.has_failed = False


_connections: WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, torch.device], Connection]] = (
    WeakKeyDictionary()
)


def run_connected(
    group: dist.ProcessGroup | None,
    ranks_per_node: int,
    device: torch.device,
    exchange: Callable[[Connection], Exchange[T]],
) -> T:
    """Run an exchange among ranks that stay connected for the next one; a collective call.

    A connection ends with its process group, or when an exchange fails on any rank.

    Raises:
        SpecError: there is no process group, or nodes do not hold equally many.
        ExchangeError: a peer failed, now or before.
    """
    if not is_distributed():
        raise SpecError("torch.distributed is not initialised; call init_process_group first")
    whole: Any = group or dist.group.WORLD
    known = _connections.setdefault(whole, {})
    place = ranks_per_node, device
    if place not in known:
        known[place] = Connection(RankLevels(group, ranks_per_node, device))
    connection = known[place]
    if connection.has_failed:
        raise ExchangeError(
            "an exchange in this process group failed before, and its ranks have left it; give "
            "group=torch.distributed.new_group()"
        )
    connection.has_failed = True
    found = connection.levels.run(exchange(connection))
    connection.has_failed = False
    connection.num_exchanges += 1
    return found
