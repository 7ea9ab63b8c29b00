"""Exclusive use of a run folder by one run, whose ranks must all see the same folder.

Each rank that writes there locks a file ``rank-N.lock`` until its process ends, however it ends. A worker
that outlives its launcher therefore blocks the next run until it has ended.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tersor.errors import SpecError
from tersor.workloads.locks import try_lock
from tersor.workloads.ranks import Ranks

_PATIENCE_S: Final = 5.0
"""Time to wait for a lock: workers of a killed launcher end within about a second; a live run does not."""


@contextmanager
def locked_run_folder(folder: Path, ranks: Ranks, *, shared: bool) -> Iterator[None]:
    """Exclude other runs from a folder while the block runs; a collective call.

    Args:
        folder: created if missing, and removed again if it stays empty.
        ranks: of this run.
        shared: True if all ranks write there, False if only rank 0 does.

    Raises:
        SpecError: another run uses the folder, its file system has no locks, or ranks see different
            folders; raised on all ranks.
    """
    session, is_new = secrets.token_hex(8), not folder.exists()
    num_writers = ranks.world_size if shared else 1
    with ExitStack() as stack:
        if ranks.rank == 0:
            stack.callback(_remove_if_empty, folder, is_new)
        ranks.run_on_all(lambda: _take_first(stack, folder, ranks, session, num_writers))
        session = ranks.gathered(session)[0]
        if shared:
            ranks.run_on_all(lambda: _take_own(stack, folder, ranks, session))
        yield


def _take_first(
    stack: ExitStack, folder: Path, ranks: Ranks, session: str, num_writers: int
) -> None:
    """On rank 0, take its lock, and the locks of ranks that exist only in an earlier run."""
    if ranks.rank:
        return
    folder.mkdir(parents=True, exist_ok=True)
    matches = [re.fullmatch(r"rank-(\d+)\.lock", path.name) for path in folder.iterdir()]
    earlier = {int(match[1]) for match in matches if match}
    for rank in [0, *sorted(rank for rank in earlier if rank >= num_writers)]:
        stack.enter_context(_locked(folder, rank, session))


def _take_own(stack: ExitStack, folder: Path, ranks: Ranks, session: str) -> None:
    """On other ranks, check that the lock of rank 0 is visible, and take the rank's own lock."""
    if not ranks.rank:
        return
    if _words_of(folder / "rank-0.lock").get("session") != session:
        raise SpecError(
            f"rank {ranks.rank} does not find in {folder} what rank 0 wrote there: they see "
            "different folders; name one on a disk that all ranks share"
        )
    stack.enter_context(_locked(folder, ranks.rank, session))


def _words_of(path: Path) -> dict[str, Any]:
    """Return the contents of a lock file, written by its holder; empty if unreadable."""
    try:
        words = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return words if isinstance(words, dict) else {}


@contextmanager
def _locked(folder: Path, rank: int, session: str) -> Iterator[None]:
    path, deadline = folder / f"rank-{rank}.lock", time.monotonic() + _PATIENCE_S
    while (file := try_lock(path)) is None:
        if time.monotonic() >= deadline:
            holder = _words_of(path)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise SpecError(
                f"{folder} is in use by another run ({who} is its rank {rank}); wait until that has "
                "ended, end it, or name another folder"
            )
        time.sleep(0.1)
    with file:
        file.truncate(0)
        words = {"session": session, "pid": os.getpid(), "host": socket.gethostname()}
        file.write(json.dumps(words).encode())
        file.flush()
        os.fsync(file.fileno())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _remove_if_empty(folder: Path, is_new: bool) -> None:
    if is_new:
        with suppress(OSError):
            folder.rmdir()
