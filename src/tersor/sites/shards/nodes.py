"""Detection of the ranks that share a node."""

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
    """Return how many consecutive ranks share a node; with ``"auto"``, this is a collective call.

    Ranks share a node if torchrun gave them the same ``GROUP_RANK`` and their host names match. If any rank has no
    ``GROUP_RANK``, host names alone decide. ``LOCAL_WORLD_SIZE`` is not reliable, because a process group may contain
    only a part of each node.

    Raises:
        SpecError: nodes have different numbers of ranks, or the ranks of a node are not consecutive.
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
