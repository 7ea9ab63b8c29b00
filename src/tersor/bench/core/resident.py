"""A process's resident memory as Linux counts it, and child processes to measure it in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tersor.errors import TersorError

_HIGH_WATER: Final = Path("/proc/self/clear_refs")


def can_measure_resident() -> bool:
    """Return whether a process's peak memory can be measured here; only Linux supports it."""
    return _HIGH_WATER.exists()


def resident_nbytes() -> int:
    """Return the resident memory of this process in bytes."""
    return _status_nbytes("VmRSS")


def peak_resident_nbytes() -> int:
    """Return the peak resident memory of this process since ``reset_peak_resident``, in bytes."""
    return _status_nbytes("VmHWM")


def reset_peak_resident() -> None:
    """Reset the high-water mark to the current resident memory."""
    _HIGH_WATER.write_text("5")


def _status_nbytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel reports no {field}")


def child_report(
    module: ModuleType,
    arguments: Sequence[str],
    failed: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a module of this package in a child process and return the JSON object that it prints.

    Args:
        module: the module, run with ``python -m``.
        arguments: its command-line arguments.
        failed: how the error message begins.
        environment: environment variables in addition to those of this process.

    Raises:
        TersorError: the child failed; the message ends with its last line on stderr.
    """
    command = [sys.executable, "-m", module.__name__, *arguments]
    # the child must find the package even if this process runs from a source tree
    own = sys.modules["tersor"].__file__ or ""
    path = os.pathsep.join(filter(None, (str(Path(own).parents[1]), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(  # noqa: S603 (our own interpreter and module)
        command, capture_output=True, text=True, check=False,
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
    )  # fmt: skip
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise TersorError(f"{failed}: {last[0]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report
