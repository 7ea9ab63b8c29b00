"""A run folder belongs to one run at a time, and all of its ranks see the same folder.

Each rank that writes there holds a lock on a file ``rank-N.lock`` for as long as it lives, however it
ends. A worker that outlives its launcher thus keeps the next run out until it has ended itself.
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
"""Workers whose launcher was killed notice within a second or so; a run that lives stays."""


@contextmanager
def held(folder: Path, ranks: Ranks, *, shared: bool) -> Iterator[None]:
    """Keep other runs out of a folder while the block runs; a collective call.

    Args:
        folder: made if it is not there, and removed again if nothing was written to it.
        ranks: those of this run.
        shared: whether all ranks write there, and not rank 0 alone.

    Raises:
        SpecError: another run lives there, its disk has no locks, or ranks see different folders;
            raised on all ranks alike.
    """
    session, is_new = secrets.token_hex(8), not folder.exists()
    num_writers = ranks.world_size if shared else 1
    with ExitStack() as stack:
        if ranks.rank == 0:
            stack.callback(_remove_if_empty, folder, is_new)
        ranks.together(lambda: _take_first(stack, folder, ranks, session, num_writers))
        session = ranks.gathered(session)[0]
        if shared:
            ranks.together(lambda: _take_own(stack, folder, ranks, session))
        yield


def _take_first(
    stack: ExitStack, folder: Path, ranks: Ranks, session: str, num_writers: int
) -> None:
    """Take the lock of rank 0, and those of ranks that only an earlier run had."""
    if ranks.rank:
        return
    folder.mkdir(parents=True, exist_ok=True)
    matches = [re.fullmatch(r"rank-(\d+)\.lock", path.name) for path in folder.iterdir()]
    earlier = {int(match[1]) for match in matches if match}
    for rank in [0, *sorted(rank for rank in earlier if rank >= num_writers)]:
        stack.enter_context(_locked(folder, rank, session))


def _take_own(stack: ExitStack, folder: Path, ranks: Ranks, session: str) -> None:
    """Take the lock of another rank, where it sees the one that rank 0 has taken."""
    if not ranks.rank:
        return
    if _words_of(folder / "rank-0.lock").get("session") != session:
        raise SpecError(
            f"rank {ranks.rank} does not find in {folder} what rank 0 wrote there: they see "
            "different folders; name one on a disk that all ranks share"
        )
    stack.enter_context(_locked(folder, ranks.rank, session))


def _words_of(path: Path) -> dict[str, Any]:
    """Return what the holder of a lock wrote into it; nothing where that cannot be told."""
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
