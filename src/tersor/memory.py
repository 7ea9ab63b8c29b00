"""Available memory, limits on it, and the error raised when it runs out."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path, PurePosixPath
from typing import Any, Final, ParamSpec, TypeVar

import torch

from tersor.errors import MemoryLimitError, SpecError, TersorError
from tersor.tracing import explain_traced

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SMALL_NBYTES: Final = 2**26
"""Up to this size free memory is not queried: the query takes longer than decoding most tensors."""

# file with the limit, file with the usage, and the fields of reclaimable usage: inactive and active
# page cache
_Files = tuple[str, str, tuple[str, str]]
_CGROUP_2: Final[_Files] = ("memory.max", "memory.current", ("inactive_file", "active_file"))
_CGROUP_1: Final[_Files] = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def free_nbytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of main memory that this process can still take; None if unknown.

    It is the minimum of ``MemAvailable`` of Linux and of what remains of the limits of the process's
    control groups, as set by containers and batch systems.

    Args:
        root: folder that contains ``proc`` and ``sys``.
    """
    available = _fields(root / "proc/meminfo").get("MemAvailable:")
    found = [] if available is None else [available * 1024]
    found += _left_of_groups(root)
    return max(0, min(found)) if found else None


def _left_of_groups(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, own = line.split(":", 2)
        if not controllers:
            mount, files = root / "sys/fs/cgroup", _CGROUP_2
        elif "memory" in controllers.split(","):
            mount, files = root / "sys/fs/cgroup/memory", _CGROUP_1
        else:
            continue
        # the limits of all ancestors apply too; inside a container some of them are not visible
        path = PurePosixPath(own.lstrip("/"))
        for group in (path, *path.parents):
            yield from _left_of(mount / group, files)


def _left_of(group: Path, files: _Files) -> Iterator[int]:
    limit, used, reclaimable = files
    with suppress(OSError, ValueError):
        # without a limit, version 2 says "max" and version 1 almost 2**63
        left = int((group / limit).read_text()) - int((group / used).read_text())
        parts = _fields(group / "memory.stat")
        yield left + sum(parts.get(name, 0) for name in reclaimable)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _fields(path: Path) -> dict[str, int]:
    """Parse a file whose lines begin with a name and a number."""
    words = (line.split() for line in _lines(path))
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def check_limit(max_nbytes: int | None) -> None:
    """Raise ``SpecError`` unless the limit is None or a whole number of bytes."""
    if max_nbytes is not None and (type(max_nbytes) is not int or max_nbytes < 0):
        raise SpecError(
            f"max_nbytes must be a whole number of bytes, or None for what is free, not {max_nbytes!r}"
        )


def check_fits(nbytes: int, max_nbytes: int | None, what: str, way_out: str = "") -> None:
    """Check a memory limit before an allocation.

    Args:
        nbytes: size of the allocation.
        max_nbytes: the limit; None for the free memory of the machine.
        what: names the data in the message.
        way_out: an alternative to raising the limit, for the message.

    Raises:
        MemoryLimitError: ``nbytes`` exceeds the limit.
    """
    limit = max_nbytes
    if limit is None:
        limit = nbytes if nbytes <= _SMALL_NBYTES else free_nbytes()
    if limit is None or nbytes <= limit:
        return
    allowed = f"the limit of {limit:,} bytes" if max_nbytes is not None else f"the {limit:,} free"
    raise MemoryLimitError(
        f"{what} takes {nbytes:,} bytes of memory, more than {allowed}; "
        f"{way_out}allow more with max_nbytes (on the command line --max-memory)"
    )


def return_free_memory() -> None:
    """Return freed main memory to the system, if the allocator supports it.

    glibc retains the pages of freed blocks up to its largest one so far (up to 32 MiB), and a small block
    among them prevents their reuse for a large one: one step of a small ResNet took 336 MiB, and 124 with
    this call.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def lacks_memory(error: BaseException) -> bool:
    """True if Python, numpy, numba or torch ran out of main memory or GPU memory."""
    if isinstance(error, TersorError):
        return False
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    # torch has no error class for main memory
    return "DefaultCPUAllocator" in str(error)


def raises_memory_limit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function raise ``MemoryLimitError`` when main memory runs out, and ``SpecError`` for tensors that torch traces.

    torch's error for GPU memory propagates unchanged, because training loops catch it.
    """

    @wraps(function)
    def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return function(*arguments, **options)
        except (MemoryError, RuntimeError, AssertionError) as error:
            if not lacks_memory(error):
                explain_traced(error)
                raise
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            raise MemoryLimitError(
                "there is not enough memory; free some, or take less at a time, as with smaller chunks"
            ) from error

    return call
