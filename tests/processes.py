"""Processes that a test looks for after they should have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_S = 60.0


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def children_of(parent: int) -> list[int]:
    """Return the ids of a process's own children."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _status(pid).get("PPid") == str(parent)]


def is_running(pid: int) -> bool:
    """Return whether a process lives; one that nobody waited for yet does not."""
    return not _status(pid).get("State", "Z").startswith("Z")


def assert_ended(pids: Sequence[int]) -> None:
    """Fail unless all processes end soon, on a machine with much else to do."""
    deadline = time.monotonic() + _PATIENCE_S
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if is_running(pid)]
    assert not left, f"still running: {left}"
