"""Poison for fresh memory, and what a test may leave behind; ``conftest.py`` applies both."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

# set once per process by the OpenMP runtime, by torch's compiler and by pytest itself
ENV_OF_RUNTIMES: Final = {
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH",
}
# the pool of kernel threads and the monitor of progress bars, of which torch's compiler has one, live
# as long as the process; dummies are native threads of a library
THREADS_OF_RUNTIMES: Final = ("tersor-kernel", "tqdm_monitor", "Dummy-")
POISON_BYTE: Final = 0xA5


def poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap an allocating function so that what it returns is poisoned."""

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = allocate(*args, **kwargs)
        with torch.no_grad():
            return poison(fresh)

    return poisoned


def poison(fresh: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or with bytes 0xA5 where the dtype has no NaN; a bool becomes True."""
    dtype = fresh.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return fresh.fill_(float("nan"))
    if dtype == torch.bool:
        return fresh.fill_(True)
    pattern = int.from_bytes(
        bytes([POISON_BYTE]) * dtype.itemsize, "little", signed=dtype.is_signed
    )
    return fresh.fill_(pattern)


def leaked_env(before: dict[str, str]) -> Iterator[str]:
    """Yield what changed, and change it back, so that only the guilty test fails."""
    after = dict(os.environ)
    for name in sorted((before.keys() | after.keys()) - ENV_OF_RUNTIMES):
        if before.get(name) != after.get(name):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
            yield f"the environment variable {name}"


def leaked_threads(before: set[threading.Thread]) -> Iterator[str]:
    """Yield the threads that live on, but for those that a runtime keeps."""
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith(THREADS_OF_RUNTIMES):
            # one that was already told to end is no leak
            thread.join(timeout=1.0)
            if thread.is_alive():
                yield f"the thread {thread.name}"


def leaked_process_groups() -> Iterator[str]:
    """Yield the default process group if there is one, and end it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        yield "a process group"
