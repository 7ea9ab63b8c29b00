"""Processes of ranks, each at its place in a network, that are told what to do line by line.

A rank reads JSON lines from its standard input and writes them to its standard output: the first line
it reads are its settings; then it answers every message with ``{"answer": ...}`` or with
``{"error": ...}``. A rank whose input ends without ``{"end": true}`` has lost this process, and ends.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from tersor.errors import ExchangeError
from tersor.workloads.network.opening import Network

_READ_NBYTES: Final = 1 << 16
_END_TIMEOUT_S: Final = 5.0
_KEEP_MEMORY: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Ranks keep what they free. glibc gives large buffers back to the kernel, which on some virtual machines
takes 100 us to hand out a page again: copies of 3 MB then took 80 ms and hid what was measured."""


class RankProcesses:
    """All ranks of one program; use as a context manager, which leaves no process behind."""

    def __init__(self, module: str, network: Network, num_ranks: int) -> None:
        """Name the module that every rank runs; nothing is started yet."""
        self._module, self._network, self.num_ranks = module, network, num_ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._rests = [b""] * num_ranks

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tersor-ranks-")
        try:
            for rank in range(self.num_ranks):
                self._processes.append(self._started(rank))
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._end(at_once=kind is not None)

    def _errors(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank-{rank}.txt"

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        command = [*self._network.prefix(rank), sys.executable, "-m", self._module]
        # what this process can import, its ranks can
        paths = os.pathsep.join(path for path in sys.path if path)
        changes = {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": self._network.interface()}
        with self._errors(rank).open("wb") as errors:
            # a session of its own: Ctrl-C reaches this process alone, which then ends the ranks
            return subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**_KEEP_MEMORY, **os.environ, **changes},
                start_new_session=True,
            )

    def set_up(self, settings: Mapping[str, Any], timeout_s: float) -> list[Any]:
        """Give every rank its settings, with ``rank``, ``num_ranks`` and ``store`` added."""
        store = str(Path(self._folder.name) / "store")
        known = {"num_ranks": self.num_ranks, "store": store}
        messages = [{**settings, **known, "rank": rank} for rank in range(self.num_ranks)]
        return self._asked(messages, timeout_s)

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> list[Any]:
        """Give every rank a message and return the answers, by rank.

        Raises:
            ExchangeError: a rank failed or died, or answers took too long.
        """
        return self._asked([message] * self.num_ranks, timeout_s)

    def _asked(self, messages: list[Any], timeout_s: float) -> list[Any]:
        for rank, message in enumerate(messages):
            self._send(rank, message)
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                selector.register(process.stdout or 0, selectors.EVENT_READ, rank)
            while len(answers) < self.num_ranks:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise ExchangeError(f"ranks gave no answer within {timeout_s:.0f} s")
                for key, _ in ready:
                    for line in self._lines(key.data):
                        answers[key.data] = _answer(key.data, json.loads(line))
        return [answers[rank] for rank in range(self.num_ranks)]

    def _send(self, rank: int, message: Any) -> None:
        stdin = self._processes[rank].stdin
        try:
            if stdin is not None:
                stdin.write(json.dumps(message).encode() + b"\n")
                stdin.flush()
        except BrokenPipeError as error:
            raise self._death(rank) from error

    def _lines(self, rank: int) -> list[bytes]:
        """Return the whole lines that a rank has written by now."""
        stdout = self._processes[rank].stdout
        data = b"" if stdout is None else os.read(stdout.fileno(), _READ_NBYTES)
        if not data:
            raise self._death(rank)
        *lines, self._rests[rank] = (self._rests[rank] + data).split(b"\n")
        return lines

    def _death(self, rank: int) -> ExchangeError:
        said = self._errors(rank).read_text(errors="replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        return ExchangeError(f"rank {rank} ended before it was done: {last}")

    def _end(self, *, at_once: bool) -> None:
        """Ask ranks to end, and kill those that do not, or all of them at once."""
        for process in self._processes:
            if at_once:
                process.kill()
            try:
                if process.stdin is not None:
                    process.stdin.write(b'{"end": true}\n')
                    process.stdin.close()
            except BrokenPipeError:
                continue
        deadline = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._folder.cleanup()


def _answer(rank: int, line: Any) -> Any:
    if "error" in line:
        raise ExchangeError(f"rank {rank} failed: {line['error']}")
    return line["answer"]
