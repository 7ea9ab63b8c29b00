"""Processes that train together: under torchrun, alone, or started here.

A rank ends when it cannot go on with the others: where a peer is gone, and where torchrun is, which would
have ended it.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from tersor._process import PARENT
from tersor.comm.agreement import first_line
from tersor.errors import ExchangeError, SpecError, TersorError

_TIMEOUT: Final = timedelta(minutes=10)
_WATCH_S: Final = 1.0
"""Seconds between two looks whether torchrun is still there."""


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Join the ranks that torchrun started, if it did, and leave them at the end."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or dist.is_initialized():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    rank = int(os.environ["RANK"])
    with _ending_with_torchrun(), lost_peers_explained(rank, dist.DistError):
        with lost_peers_explained(rank):
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def _ending_with_torchrun() -> Iterator[None]:
    """End this process when torchrun is gone: it would train on, and write where the next run does.

    By a thread, as a rank may be waiting for a peer; files are written whole or not at all.
    """
    if not dist.is_torchelastic_launched():
        yield
        return
    is_done = threading.Event()

    def watch() -> None:
        while os.getppid() == PARENT:
            if is_done.wait(_WATCH_S):
                return
        # not through sys.stderr, whose lock the main thread may hold
        os.write(2, b"tersor: torchrun is gone, and this rank ends with it; start it again\n")
        os._exit(1)

    thread = threading.Thread(target=watch, name="tersor-torchrun", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


@contextmanager
def lost_peers_explained(rank: int, raised: type[RuntimeError] = RuntimeError) -> Iterator[None]:
    """Turn what a backend raises when a peer is gone into one sentence.

    Args:
        rank: of this process.
        raised: by the backend. gloo has no class of its own, so that by default the block may hold
            nothing but a call of the backend.

    Raises:
        ExchangeError: the block raised such an error.
    """
    try:
        yield
    except TersorError:
        raise
    except raised as error:
        raise ExchangeError(
            f"rank {rank} lost the others: one of them left, failed or timed out; look for the first "
            f"error of any rank ({first_line(error)})"
        ) from error


def _local_rank(
    work: Callable[..., Any], rank: int, world_size: int, store: str, pipe: Any, options: Any
) -> None:
    # loopback only: ranks of one machine must not be seen from outside
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=_TIMEOUT,
        )
        work(rank, pipe.send, **options)
    except KeyboardInterrupt:
        pass
    finally:
        pipe.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def run_local_ranks(
    work: Callable[..., Any],
    world_size: int,
    options: Mapping[str, Any],
    receive: Callable[[int, Any], None],
) -> None:
    """Run ``work(rank, send, **options)`` in processes of this machine that talk through gloo.

    Args:
        work: can be imported by name.
        world_size: how many processes.
        options: sent to each.
        receive: gets the rank and the message of every ``send`` of plain values, here.

    Raises:
        ExchangeError: a rank failed; the others are ended.
    """
    if world_size < 1:
        raise SpecError(f"at least one rank is needed, not {world_size}")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes, pipes = [], {}
        for rank in range(world_size):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (work, rank, world_size, store, theirs, dict(options))
            process = context.Process(target=_local_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes[ours] = rank
        try:
            _receive_all(pipes, receive)
            for rank, process in enumerate(processes):
                process.join()
                if process.exitcode:
                    raise ExchangeError(f"rank {rank} failed; its own error stands above")
        finally:
            for process in processes:
                process.kill()


def _receive_all(pipes: dict[Any, int], receive: Callable[[int, Any], None]) -> None:
    """Hand over messages until every rank has ended."""
    while pipes:
        ready: list[Any] = wait(list(pipes))
        for pipe in ready:
            rank = pipes[pipe]
            try:
                message = pipe.recv()
            except EOFError:
                del pipes[pipe]
                continue
            receive(rank, message)
