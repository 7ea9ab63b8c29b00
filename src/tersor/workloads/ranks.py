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
"""Seconds between two looks whether torchrun is still there."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among all of them.

    Where a peer is gone or does not come in time, collective calls raise ``ExchangeError``.
    """

    rank: int
    world_size: int

    @classmethod
    def current(cls) -> Ranks:
        """Return this process's place; one of one without ``torch.distributed``."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls(0, 1)

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order; a collective call."""
        return [value] if self.world_size == 1 else gathered(value, None)

    def together(self, task: Callable[[], _T]) -> _T:
        """Do a task on every rank and return what it gave here; a collective call.

        Raises:
            SpecError: it failed on another rank; says which, and why. Where it failed here, the
                error is its own.
        """
        try:
            result = task()
        except Exception as error:
            # an error of the group would hide the one that is told of
            with suppress(ExchangeError):
                self.gathered(_reported(error))
            raise
        for rank, failure in enumerate(self.gathered(None)):
            if failure is not None:
                raise SpecError(f"rank {rank} cannot go on: {failure}")
        return result

    def add_up(self, tensor: torch.Tensor) -> None:
        """Add up the tensors of all ranks, in place; a collective call."""
        if self.world_size > 1:
            with lost_peers_explained(self.rank):
                dist.all_reduce(tensor)

    def concatenated(self, own: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, of one shape, in order; a collective call."""
        if self.world_size == 1:
            return own
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        with lost_peers_explained(self.rank):
            dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    def share(self, total: int) -> slice:
        """Return this rank's part of ``total`` samples, which all ranks share evenly."""
        each = total // self.world_size
        return slice(self.rank * each, (self.rank + 1) * each)


def _reported(error: Exception) -> str:
    """Return what peers are told: the class too, where the message was not written for users."""
    if isinstance(error, TersorError | OSError):
        return str(error)
    name, line = type(error).__name__, first_line(error)
    return line if line == name else f"{name}: {line}"


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
def lost_peers_explained(
    rank: int, raised: type[RuntimeError] = RuntimeError, says: str = ""
) -> Iterator[None]:
    """Turn what a backend raises when a peer is gone into one sentence.

    Args:
        rank: of this process.
        raised: by the backend. gloo has no class of its own, so that by default the block may hold
            nothing but a call of the backend.
        says: part of every message of the backend; a block that computes, too, names it.

    Raises:
        ExchangeError: the block raised such an error.
    """
    try:
        yield
    except TersorError:
        raise
    except raised as error:
        if says not in str(error):
            raise
        raise ExchangeError(
            f"rank {rank} lost the others: one of them left, failed or timed out; look for the first "
            f"error of any rank ({first_line(error)})"
        ) from error


@contextmanager
def meeting(
    rank: int, world_size: int, store: str, timeout: timedelta = _TIMEOUT
) -> Iterator[None]:
    """Join ranks of this machine through the file ``store``, with a fair share of its cores.

    Threads are no more than torch would take, which ``OMP_NUM_THREADS`` limits.
    """
    share = max(1, (os.cpu_count() or 1) // world_size)
    torch.set_num_threads(min(share, torch.get_num_threads()))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timeout
    )
    try:
        # a rank that is done at once must not be gone before the others are connected to it
        dist.barrier()
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _local_rank(
    work: Callable[..., Any], rank: int, world_size: int, store: str, pipe: Any, options: Any
) -> None:
    # loopback only: ranks of one machine must not be seen from outside
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
            try:
                message = pipe.recv()
            except EOFError:
                del pipes[pipe]
            else:
                receive(pipes[pipe], message)
