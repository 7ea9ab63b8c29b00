"""A rank that exchanges so many bytes with all others and tells what the links of its node have sent."""

from __future__ import annotations

import json
import sys
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


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    dist.init_process_group(
        "gloo", init_method=f"file://{settings['store']}", rank=settings["rank"],
        world_size=settings["num_ranks"],
    )  # fmt: skip
    print(json.dumps({"answer": None}), flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("end"):
            break
        print(json.dumps({"answer": exchanged(message["nbytes"])}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
