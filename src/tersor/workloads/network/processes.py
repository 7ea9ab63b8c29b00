"""Rank processes, each in its part of a network, that answer requests of this process.

A rank first creates its handler, then answers each message. If its pipe closes before the final message,
this process is gone, and the rank ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, Self

from tersor.errors import ExchangeError
from tersor.workloads.network.opening import Network

_MODULE: Final = "tersor.workloads.network.rank"
_END_TIMEOUT_S: Final = 5.0
_KEEP_MEMORY: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Makes glibc retain freed memory in ranks. By default it returns large buffers to the kernel, which on some
virtual machines takes 100 us to provide a page again: copies of 3 MB then took 80 ms and distorted the
measurements."""


class RankProcesses:
    """All ranks of one program, as a context manager that leaves no process behind."""

    def __init__(
        self, make: Callable[..., Callable[[Any], Any]], network: Network, num_ranks: int
    ) -> None:
        """Prepare the ranks; entering the context starts them.

        Args:
            make: creates the handler of messages from settings; it must be importable by name.
            network: that the ranks run on.
            num_ranks: number of ranks.
        """
        self._make, self._network, self.num_ranks = make, network, num_ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Any] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tersor-ranks-")
        try:
            for rank in range(self.num_ranks):
                self._start(rank)
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._end(at_once=kind is not None)

    def _errors(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank-{rank}.txt"

    def _start(self, rank: int) -> None:
        ours, theirs = Pipe()
        self._pipes.append(ours)
        fd = theirs.fileno()
        command = [*self._network.prefix(rank), sys.executable, "-m", _MODULE, str(fd)]
        # ranks can import everything that this process can
        paths = os.pathsep.join(path for path in sys.path if path)
        changes = {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": self._network.interface}
        with theirs, self._errors(rank).open("wb") as errors:
            # in a new session, so that Ctrl-C reaches only this process, which then ends the ranks
            process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(fd,),
                env={**_KEEP_MEMORY, **os.environ, **changes},
                start_new_session=True,
            )
        self._processes.append(process)

    def set_up(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        """Connect the ranks, and create the handler of each from ``settings``; raises as ``ask`` does."""
        place = {"store": str(Path(self._folder.name) / "store"), "world_size": self.num_ranks}
        ranks = range(self.num_ranks)
        self._asked([(self._make, settings, {**place, "rank": rank}) for rank in ranks], timeout_s)

    def ask(self, message: Any, timeout_s: float) -> list[Any]:
        """Send a message other than None to every rank; return the answers in rank order.

        Raises:
            ExchangeError: a rank failed or died, or answers took too long.
        """
        return self._asked([message] * self.num_ranks, timeout_s)

    def _asked(self, messages: list[Any], timeout_s: float) -> list[Any]:
        rank, answers, deadline = 0, dict[int, Any](), time.monotonic() + timeout_s
        try:
            for rank, message in enumerate(messages):
                self._pipes[rank].send(message)
            while len(answers) < self.num_ranks:
                ready = wait(self._pipes, max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise ExchangeError(f"ranks gave no answer within {timeout_s:.0f} s")
                for pipe in ready:
                    rank = self._pipes.index(pipe)
                    found = self._pipes[rank].recv()
                    if "error" in found:
                        raise ExchangeError(f"rank {rank} failed: {found['error']}")
                    answers[rank] = found["answer"]
        except (EOFError, OSError) as error:
            said = self._errors(rank).read_text(errors="replace").strip().splitlines()
            last = said[-1] if said else "it said nothing"
            raise ExchangeError(f"rank {rank} ended before it was done: {last}") from error
        return [answers[rank] for rank in range(self.num_ranks)]

    def _end(self, *, at_once: bool) -> None:
        """Ask ranks to end and kill those that do not in time; with ``at_once`` kill all immediately."""
        for process, pipe in zip(self._processes, self._pipes, strict=False):
            if at_once:
                process.kill()
            with pipe, suppress(OSError):
                pipe.send(None)
        deadline = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
