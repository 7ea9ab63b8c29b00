"""Saying when a kernel is compiled for this machine: a pause of seconds that happens once.

``cpu/compile_events.py`` listens to numba, ``gpu/compile_events.py`` to Triton; both report here. To load a
compiled kernel from the cache on disk is not to compile it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

COMPILING: Final = "compiling kernels for this machine (once per kernel, then cached)..."

_Callback = Callable[[bool], None]


class _Compilations:
    """The compilations that run now, in all threads; those that overlap count as one."""

    def __init__(self) -> None:
        self.callbacks: list[_Callback] = []
        self.spent_s = 0.0
        self._called: list[_Callback] = []
        self._begin_s = 0.0
        self._is_logged = False
        self._lock = Lock()
        self._num_running = 0

    def begin(self) -> None:
        with self._lock:
            self._num_running += 1
            if self._num_running > 1:
                return
            self._begin_s = time.perf_counter()
            called = self._called = list(self.callbacks)
            is_logged = not called and not self._is_logged
            self._is_logged |= is_logged
        # without the lock: a callback, or a handler of the log, may itself compile something
        try:
            for callback in called:
                callback(True)
            if is_logged:
                logging.getLogger("tersor").warning(COMPILING)
        except BaseException:
            # a compilation that does not begin is never ended
            self.end()
            raise

    def end(self) -> None:
        with self._lock:
            self._num_running -= 1
            if self._num_running > 0:
                return
            self.spent_s += time.perf_counter() - self._begin_s
            # not those of blocks that were opened meanwhile: they know of no begin
            called = [callback for callback in self._called if callback in self.callbacks]
            self._called = []
        for callback in called:
            callback(False)

    def forget(self) -> None:
        """Forget the compilations of other threads, which a forked child does not have."""
        self._lock = Lock()
        self._num_running = 0
        self._called = []


_compilations: Final = _Compilations()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compilations.forget)


def compilation_begins() -> None:
    """Count the seconds until ``compilation_ends``, and announce them; for those who listen to a compiler.

    The callbacks of ``on_compile`` are called. Where there are none, the first compilation of the process
    is a warning of the logger ``tersor``: Python prints one that no handler takes, so a user sees why the
    call pauses.
    """
    _compilations.begin()


def compilation_ends() -> None:
    """End what ``compilation_begins`` began, also if it failed."""
    _compilations.end()


@contextmanager
def on_compile(callback: Callable[[bool], None]) -> Iterator[None]:
    """Call ``callback(True)`` when compiling begins inside the block, ``callback(False)`` after.

    Calls come from the thread that compiles; overlapping compilations count as one, those of numba and
    Triton together.
    """
    _compilations.callbacks.append(callback)
    try:
        yield
    finally:
        _compilations.callbacks.remove(callback)


def compile_seconds() -> float:
    """Return the seconds that this process has spent compiling kernels.

    Whoever times a call takes the growth of this off it: what is compiled once says nothing of the
    next call. Compilations that overlap count once.
    """
    return _compilations.spent_s


__all__ = [
    "COMPILING",
    "compilation_begins",
    "compilation_ends",
    "compile_seconds",
    "on_compile",
]
