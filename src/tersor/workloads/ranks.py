"""Processes that train together: under torchrun, alone, or started by this module.

A rank ends when it cannot continue with the others: when a peer is gone, or torchrun, which would have
ended it.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from tersor._process import PARENT, end_rank
from tersor.comm.agreement import first_line, gathered
from tersor.errors import ExchangeError, SpecError, TersorError

_T = TypeVar("_T")
_TIMEOUT: Final = timedelta(minutes=10)
_WATCH_S: Final = 1.0
"""Seconds between checks that torchrun is still alive."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process, and collective calls with the others.

    Collective calls raise ``ExchangeError`` if a peer is gone or times out.
    """

    rank: int
    world_size: int

    @classmethod
    def current(cls) -> Ranks:
        """Return the rank of this process; rank 0 of 1 without ``torch.distributed``."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls(0, 1)

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order; a collective call."""
        return [value] if self.world_size == 1 else gathered(value, None)

    def run_on_all(self, task: Callable[[], _T]) -> _T:
        """Run a task on every rank and return its local result; a collective call.

        If the task fails on this rank, its own error is raised.

        Raises:
            SpecError: it failed on another rank; the message says which, and why.
        """
        try:
            result = task()
        except Exception as error:
            # a failing group must not mask the error being reported
            with suppress(ExchangeError):
                self.gathered(_reported(error))
            raise
        for rank, failure in enumerate(self.gathered(None)):
            if failure is not None:
                raise SpecError(f"rank {rank} cannot go on: {failure}")
        return result

    def add_up(self, tensor: torch.Tensor) -> None:
        """Sum the tensors of all ranks, in place; a collective call."""
        if self.world_size > 1:
            with lost_peers_explained(self.rank):
                dist.all_reduce(tensor)

    def concatenated(self, own: torch.Tensor) -> torch.Tensor:
        """Concatenate the tensors of all ranks, of equal shapes, in rank order; a collective call."""
        if self.world_size == 1:
            return own
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        with lost_peers_explained(self.rank):
            dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    def share(self, total: int) -> slice:
        """Return this rank's share of ``total`` samples, rounded down to equal shares."""
        each = total // self.world_size
        return slice(self.rank * each, (self.rank + 1) * each)


def _reported(error: Exception) -> str:
    """Return the message for peers, with the class of an error whose message is not meant for users."""
    if isinstance(error, TersorError | OSError):
        return str(error)
    name, line = type(error).__name__, first_line(error)
    return line if line == name else f"{name}: {line}"


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Join the process group of torchrun, if it started this process, and leave it at the end."""
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
    """End this process when torchrun is gone, or it would continue and overwrite files of the next run.

    A thread does this because a rank may be blocked waiting for a peer. Files are written atomically, so
    the process may end at any time.
    """
    if not dist.is_torchelastic_launched():
        yield
        return
    is_done = threading.Event()

    def watch() -> None:
        while os.getppid() == PARENT:
            if is_done.wait(_WATCH_S):
                return
        # not through sys.stderr, because the main thread may hold its lock
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
def lost_peers_explained(
    rank: int, raised: type[RuntimeError] = RuntimeError, message_part: str = ""
) -> Iterator[None]:
    """Translate the error that a backend raises when a peer is gone.

    Args:
        rank: of this process.
        raised: error class of the backend. gloo has no class of its own, so with the default the block
            must contain nothing but calls of the backend.
        message_part: text that every message of the backend contains; required if the block also computes.

    Raises:
        ExchangeError: the block raised such an error.
    """
    try:
        yield
    except TersorError:
        raise
    except raised as error:
        if message_part not in str(error):
            raise
        raise ExchangeError(
            f"rank {rank} lost the others: one of them left, failed or timed out; look for the first "
            f"error of any rank ({first_line(error)})"
        ) from error


@contextmanager
def meeting(
    rank: int, world_size: int, store: str, timeout: timedelta = _TIMEOUT
) -> Iterator[None]:
    """Connect ranks of this machine through the file ``store``, each with a fair share of its cores.

    The number of threads does not exceed torch's default, which ``OMP_NUM_THREADS`` limits.
    """
    share = max(1, (os.cpu_count() or 1) // world_size)
    torch.set_num_threads(min(share, torch.get_num_threads()))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timeout
    )
    try:
        # a rank that finishes at once must not leave before the others have connected to it
        dist.barrier()
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _local_rank(
    work: Callable[..., Any], rank: int, world_size: int, store: str, pipe: Any, options: Any
) -> None:
    # loopback only: ranks of one machine must not be reachable from outside
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with suppress(KeyboardInterrupt), pipe, meeting(rank, world_size, store):
        work(rank, pipe.send, **options)
    end_rank(0)


def run_local_ranks(
    work: Callable[..., Any],
    world_size: int,
    options: Mapping[str, Any],
    receive: Callable[[int, Any], None],
) -> None:
    """Run ``work(rank, send, **options)`` in local processes that communicate through gloo.

    Args:
        work: a function that can be imported by name.
        world_size: number of processes.
        options: passed to each process.
        receive: called in this process with the rank and the message of every ``send``; messages are
            plain values.

    Raises:
        ExchangeError: a rank failed; the others are killed.
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
    """Pass messages to ``receive`` until every rank has ended."""
    while pipes:
        ready: list[Any] = wait(list(pipes))
        for pipe in ready:
            try:
                message = pipe.recv()
            except EOFError:
                del pipes[pipe]
            else:
                receive(pipes[pipe], message)
