"""Which ranks share a node."""

from __future__ import annotations

import os
import socket
from itertools import groupby
from typing import Literal

import torch.distributed as dist

from tersor.comm import gathered
from tersor.comm.levels import check_ranks_per_node
from tersor.errors import SpecError

RanksPerNode = int | Literal["auto"]


def found_ranks_per_node(wanted: RanksPerNode, group: dist.ProcessGroup | None) -> int:
    """Return how many consecutive ranks share a node; a collective call if it is to be found out.

    Ranks share a node if torchrun gave them the same ``GROUP_RANK`` and their hosts have the same name;
    where a rank has no ``GROUP_RANK``, names alone decide. ``LOCAL_WORLD_SIZE`` would not do: a process
    group may hold a part of each node.

    Raises:
        SpecError: nodes do not hold equally many, or their ranks do not follow each other.
    """
    if wanted != "auto":
        check_ranks_per_node(wanted, dist.get_world_size(group))
        return wanted
    every = gathered((os.environ.get("GROUP_RANK"), socket.gethostname()), group)
    if any(number is None for number, _ in every):
        every = [(None, host) for _, host in every]
    sizes = [len(list(node)) for _, node in groupby(every)]
    if len(set(sizes)) > 1 or len(sizes) != len(set(every)):
        raise SpecError(
            "ranks_per_node cannot be found: nodes hold different numbers of ranks, or their ranks do not "
            "follow each other; give ranks_per_node=1 for one hop between all ranks"
        )
    return sizes[0]
