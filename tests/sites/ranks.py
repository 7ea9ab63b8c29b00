"""Real ranks on this machine: processes that talk through gloo."""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_S = 120.0
"""More than kernels take to be compiled, which one rank may do while the others wait for it."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.sites.preloaded"])


@dataclass(frozen=True)
class Failure:
    """What a rank raised: the name of its class, its message, and where."""

    name: str
    message: str
    trace: str


def _rank(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    store: str,
    pipe: Connection,
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # a rank that is done at once must not be gone before the others are connected to it
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        result: Any = function(rank, *args)
    except Exception as error:  # noqa: BLE001 - a test looks at whatever a rank raises
        result = Failure(type(error).__name__, str(error), traceback.format_exc())
    # as bytes: a tensor sent as such stays in memory that this process shares, and takes along
    data = io.BytesIO()
    torch.save(result, data)
    pipe.send_bytes(data.getvalue())
    if dist.is_initialized():
        dist.destroy_process_group()


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Run ``function(rank, *args)`` on every rank; return what each returned, or its ``Failure``.

    ``function`` must be importable: defined at the top of a test module. None stands for a rank that
    ended without a word.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        started = []
        for rank in range(world_size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_rank, args=(function, rank, world_size, store, theirs, args)
            )
            process.start()
            theirs.close()
            started.append((process, ours))
        results = []
        for _, ours in started:
            try:
                data = ours.recv_bytes() if ours.poll(4 * TIMEOUT_S) else None
            except EOFError:
                data = None
            loaded = None if data is None else torch.load(io.BytesIO(data), weights_only=False)
            results.append(loaded)
        for process, ours in started:
            process.join(TIMEOUT_S)
            process.kill()
            ours.close()
        return results


def returned(results: list[Any]) -> list[Any]:
    """Return the results, or fail with the first trace."""
    for rank, result in enumerate(results):
        assert not isinstance(result, Failure), f"rank {rank} failed:\n{result.trace}"
        assert result is not None, f"rank {rank} returned nothing"
    return results


def wait_for_all(rank: int, where: str = "") -> None:
    """Return when every rank got here, whatever became of its groups; called on every rank."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"here {where} {rank}", "yes")
    names = [f"here {where} {peer}" for peer in range(dist.get_world_size())]
    store.wait(names, timedelta(seconds=TIMEOUT_S))
