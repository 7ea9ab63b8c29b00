"""A rank that fails lets the others know, even while it lives on and keeps its error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tersor.errors import TersorError
from tersor.sites.embeddings import Exchange
from tests.sites.ranks import TIMEOUT_S, returned, run_ranks


def wait_for_all(rank: int) -> None:
    """Return when every rank got here; ranks that fail stay alive until then."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"here {rank}", "yes")
    names = [f"here {peer}" for peer in range(dist.get_world_size())]
    store.wait(names, timedelta(seconds=TIMEOUT_S))


def lied_to(rank: int) -> str:
    """Rank 1 sends rank 0 bytes that are no payload; return what this rank raised."""
    exchange = Exchange([0, 1, 2], 8, bounds=0.03)
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    send = dist.all_to_all_single

    def altered(out: Any, sent: Any, receive: Any, sizes: Any, **kwargs: Any) -> Any:
        if sent.dtype == torch.uint8:
            sent = sent.clone()
            sent[: sizes[0] : 5] ^= 0x55
        return send(out, sent, receive, sizes, **kwargs)

    if rank == 1:
        dist.all_to_all_single = altered
    try:
        for _ in range(3):
            exchange([rows])
    except TersorError as error:
        wait_for_all(rank)
        return type(error).__name__
    return "nothing"


def test_a_rank_that_keeps_its_error_does_not_keep_the_others_waiting():
    found = returned(run_ranks(lied_to, 3))
    assert found == ["CorruptDataError", "ExchangeError", "ExchangeError"]
