"""A rank that dies in a training ends all ranks within seconds, and none goes on with wrong values."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tersor.sites import shards
from tests.sites.ranks import Failure, run_ranks, wait_for_all
from tests.sites.shards.fsdp_rank import Net, compressed, message_of, train

NUM_RANKS, AT_ONCE_S = 4, 30.0


def _under_fsdp() -> nn.Module:
    return compressed()[0]


def _under_ddp() -> nn.Module:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    model.register_comm_hook(shards.DdpState(None, shards.Gradients(), 2), shards.ddp_hook)
    return model


def _end(*_: object) -> None:
    os._exit(1)


def _end_in_backward(_module: nn.Module, _args: object, out: torch.Tensor) -> None:
    out.register_hook(_end)


def _dies(rank: int, make: Callable[[], nn.Module], where: str) -> tuple[str, float]:
    """Rank 3 dies in forward or in backward; return what this rank raised, and after how long."""
    model = make()
    train(model, rank, 2)
    wait_for_all(rank)
    began = time.perf_counter()
    if rank == 3:
        last = [x for x in model.modules() if isinstance(x, nn.LayerNorm)][-1]
        last.register_forward_hook(_end if where == "forward" else _end_in_backward)
    words = message_of(lambda: train(model, rank, 3))
    return words, time.perf_counter() - began


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("make", [_under_fsdp, _under_ddp], ids=["compress", "ddp_hook"])
def test_a_rank_that_dies_ends_all_ranks(make, where):
    *found, dead = run_ranks(_dies, NUM_RANKS, make, where)
    assert dead is None
    for result in found:
        assert not isinstance(result, Failure), result.trace
        words, seconds = result
        assert "a peer left, failed or timed out" in words
        assert seconds < AT_ONCE_S
