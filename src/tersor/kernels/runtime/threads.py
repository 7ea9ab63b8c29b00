"""Split CPU work over as many threads as torch is set to use.

Kernels release the GIL, so plain threads suffice. The pool starts on first use, never on import.
Work started inside a part stays on that part's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from itertools import pairwise
from threading import Lock, current_thread, main_thread
from typing import Any, Final, ParamSpec, TypeVar

import torch

_MIN_NBYTES_PER_THREAD: Final = 1 << 19
"""Below 512 KiB per thread, starting a task (about 30 us) costs more than it saves."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = Lock()
_inside: ContextVar[bool] = ContextVar("tersor_inside_part", default=False)
_is_forked = False
_kernel_threads: ContextVar[int | None] = ContextVar("tersor_kernel_threads", default=None)
"""How many threads kernels may use while torch itself is limited to one."""


def _pool(num_threads: int) -> ThreadPoolExecutor:
    with _lock:
        if num_threads not in _pools:
            _pools[num_threads] = ThreadPoolExecutor(
                num_threads, thread_name_prefix="tersor-kernel"
            )
        return _pools[num_threads]


def _start_afresh() -> None:
    """Reset the state of a forked child, which has none of its parent's threads."""
    global _lock, _is_forked  # noqa: PLW0603 (the parent's lock may be held)
    _lock = Lock()
    _is_forked = True
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def is_forked() -> bool:
    """True in a child that was forked after tersor was imported."""
    return _is_forked


def fork_safe(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep ``function`` from using torch's own threads in a forked child.

    They did not survive the fork, and GNU OpenMP, which most builds of torch use, would wait for them
    forever. Kernels still use their own threads, and torch's thread count is restored on return.
    Wrapping is idempotent.
    """
    if getattr(function, "_is_fork_safe", False):
        return function

    @wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not _is_forked:
            return function(*args, **kwargs)
        with _one_torch_thread():
            return function(*args, **kwargs)

    vars(guarded)["_is_fork_safe"] = True
    return guarded


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    # only the initial thread of a child inherited an OpenMP team from the parent
    if count == 1 or current_thread() is not main_thread():
        yield
        return
    token = _kernel_threads.set(count)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        _kernel_threads.reset(token)


def num_parts(num_items: int, total_nbytes: int) -> int:
    """Return how many threads are worth using; 1 inside a part, which already has its own thread."""
    if _inside.get():
        return 1
    num_threads = _kernel_threads.get() or torch.get_num_threads()
    return max(1, min(num_threads, total_nbytes // _MIN_NBYTES_PER_THREAD, num_items))


def split(num_items: int, item_nbytes: int) -> list[tuple[int, int]]:
    """Cut ``range(num_items)`` into one contiguous part per thread worth using."""
    count = num_parts(num_items, num_items * item_nbytes)
    return list(pairwise(num_items * part // count for part in range(count + 1)))


def run(function: Callable[..., Any], parts: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call ``function(*part)`` for every part, in threads if there are several; return results in order."""
    if len(parts) == 1:
        return [function(*parts[0])]

    def call(part: tuple[Any, ...]) -> Any:
        _inside.set(True)
        return function(*part)

    # the calling thread runs one part itself, so n parts need n - 1 threads; each part gets a copy
    # of the context, which carries the forced backend
    pool = _pool(len(parts) - 1)
    futures: list[Future[Any]] = []
    # an interpreter that is shutting down starts no threads: this thread runs the parts left over
    with suppress(RuntimeError):
        for part in parts[1:]:
            # appended one by one, so that futures submitted before an error are not lost
            futures.append(pool.submit(copy_context().run, call, part))  # noqa: PERF401
    try:
        first = copy_context().run(call, parts[0])
        others = [copy_context().run(call, part) for part in parts[1 + len(futures) :]]
    finally:
        # also after an error: a part still running would write into memory that is reused
        wait(futures)
    return [first, *(future.result() for future in futures), *others]
