"""The exchange on a GPU: through NCCL on as many devices as there are, and in one process."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tersor import Bound
from tersor.sites.embeddings import Exchange
from tests.checks import assert_bits_equal, assert_within_bound
from tests.sites.test_exchange import table_rows

NUM_TABLES, BATCH, WIDTH = 5, 64, 16


def looked_up(table: int) -> torch.Tensor:
    return table_rows(table, BATCH, WIDTH).cuda()


def exchanged(rank: int, world_size: int, store: str, codec: str) -> None:
    """Check both directions on one rank; a failed check fails the process."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world_size)
    owners = [table % world_size for table in range(NUM_TABLES)]
    exchange = Exchange(owners, WIDTH, bounds=0.03, codec=codec, backward="none", device="cuda")
    for _ in range(3):
        rows = [looked_up(table).requires_grad_() for table in exchange.tables]
        out = exchange(rows)
        size = BATCH // world_size
        part = slice(rank * size, (rank + 1) * size)
        for table, y in enumerate(out):
            x = looked_up(table)[part]
            if codec == "raw":
                assert_bits_equal(y.detach(), x)
            else:
                bound = Bound.relative(0.03).resolve(float(x.min()), float(x.max()))
                assert_within_bound(x.cpu(), y.detach().cpu(), bound)
        torch.autograd.backward(out, [torch.full_like(y, t) for t, y in enumerate(out)])
        for table, x in zip(exchange.tables, rows, strict=True):
            assert_bits_equal(x.grad, torch.full_like(x.detach(), table))
    ratio = exchange.stats.forward.ratio
    # auto may find that so little is sent fastest as it is
    assert ratio == 1.0 if codec == "raw" else ratio > (0.9 if codec == "auto" else 4.0)
    exchange.close()
    dist.destroy_process_group()


def run_on_devices(world_size: int, codec: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        mp.spawn(exchanged, args=(world_size, store, codec), nprocs=world_size)


@pytest.mark.gpu
@pytest.mark.parametrize("codec", ["raw", "rows", "flat", "ans", "auto"])
def test_one_rank_keeps_its_bounds_through_nccl(codec):
    run_on_devices(1, codec)


@pytest.mark.multigpu
@pytest.mark.parametrize("codec", ["raw", "rows", "auto"])
def test_ranks_on_several_devices_keep_their_bounds_through_nccl(codec):
    assert torch.cuda.device_count() >= 2, "run with -m multigpu where there are two devices"
    run_on_devices(2, codec)


@pytest.mark.gpu
def test_one_process_has_the_values_of_the_cpu():
    on_cpu = Exchange([0] * NUM_TABLES, WIDTH, bounds=0.03, codec="flat")
    on_gpu = Exchange([0] * NUM_TABLES, WIDTH, bounds=0.03, codec="flat", device="cuda")
    rows = [looked_up(table) for table in range(NUM_TABLES)]
    for x, y in zip(on_cpu([row.cpu() for row in rows]), on_gpu(rows), strict=True):
        assert_bits_equal(x, y.cpu())
