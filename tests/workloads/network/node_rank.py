"""A rank that exchanges so many bytes with all others and tells what the links of its node have sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

_LINKS = Path("/sys/class/net")


def sent_nbytes() -> dict[str, int]:
    """Return the bytes that each interface has sent; ``ip netns exec`` mounts the node's own /sys."""
    return {
        name: int((_LINKS / name / "statistics" / "tx_bytes").read_text())
        for name in ("lo", "link0")
    }


def exchanged(nbytes: int) -> dict[str, int]:
    """Return what an all-to-all of ``nbytes`` per rank adds."""
    sent = torch.zeros(nbytes, dtype=torch.uint8)
    received = torch.empty_like(sent)
    # connects all ranks, so that only the bytes are counted
    few = dist.get_world_size()
    dist.all_to_all_single(received[:few], sent[:few])
    dist.barrier()
    before = sent_nbytes()
    dist.barrier()
    dist.all_to_all_single(received, sent)
    dist.barrier()
    return {name: after - before[name] for name, after in sent_nbytes().items()}


def counting() -> Callable[[int], dict[str, int]]:
    """Return what answers a number of bytes."""
    return exchanged
