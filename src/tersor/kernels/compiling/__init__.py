"""Saying when a kernel is compiled for this machine: a pause of seconds that happens once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec


def on_compile(callback: Callable[[bool], None]) -> AbstractContextManager[None]:
    """Call ``callback(True)`` when compiling begins inside the block, ``callback(False)`` after.

    Loading a compiled kernel from the cache on disk is not compiling. Calls come from the thread
    that compiles; overlapping compilations count as one. Without numba nothing is ever called.
    """
    if find_spec("numba") is None:
        return nullcontext()
    from tersor.kernels.compiling.cpu import on_compile as on_numba_compile

    return on_numba_compile(callback)


def log_first_compile() -> None:
    """Write one line to the logger ``tersor`` when a kernel is first compiled in this process.

    The second call and every later one do nothing.
    """
    if find_spec("numba") is not None:
        from tersor.kernels.compiling.cpu import log_first_compile as log_first_numba_compile

        log_first_numba_compile()


__all__ = ["log_first_compile", "on_compile"]
