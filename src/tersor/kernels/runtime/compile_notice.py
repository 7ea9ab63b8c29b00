"""Announce that a kernel is being compiled for this machine: a pause of seconds that happens once.

``cpu/compile_events.py`` listens to numba, ``gpu/compile_events.py`` to Triton; both report here. Loading
a compiled kernel from the cache on disk does not count as compiling.
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
    """The compilations in progress in all threads; overlapping ones count as one."""

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
        # without the lock: a callback or a log handler may itself compile something
        try:
            for callback in called:
                callback(True)
            if is_logged:
                logging.getLogger("tersor").warning(COMPILING)
        except BaseException:
            # nobody calls end() for a compilation whose begin() raised
            self.end()
            raise

    def end(self) -> None:
        with self._lock:
            self._num_running -= 1
            if self._num_running > 0:
                return
            self.spent_s += time.perf_counter() - self._begin_s
            # not callbacks registered meanwhile, which were never called with True
            called = [callback for callback in self._called if callback in self.callbacks]
            self._called = []
        for callback in called:
            callback(False)

    def forget(self) -> None:
        """Forget all running compilations: a forked child does not have the threads they run in."""
        self._lock = Lock()
        self._num_running = 0
        self._called = []


_compilations: Final = _Compilations()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compilations.forget)


def compilation_begins() -> None:
    """Start counting seconds until ``compilation_ends``, and announce the compilation.

    Modules that listen to a compiler call this. It calls the callbacks of ``on_compile``. If there are none,
    the first compilation of the process logs a warning to the logger ``tersor``: Python prints warnings that
    no handler takes, so a user sees why the call pauses.
    """
    _compilations.begin()


def compilation_ends() -> None:
    """End the compilation that ``compilation_begins`` started, whether or not it succeeded."""
    _compilations.end()


@contextmanager
def on_compile(callback: Callable[[bool], None]) -> Iterator[None]:
    """Call ``callback(True)`` when compiling begins inside the block, ``callback(False)`` when it ends.

    The compiling thread makes the calls. Overlapping compilations count as one, whether of numba or of
    Triton.
    """
    _compilations.callbacks.append(callback)
    try:
        yield
    finally:
        _compilations.callbacks.remove(callback)


def compile_seconds() -> float:
    """Return the seconds that this process has spent compiling kernels; overlapping compilations count once.

    To time a call, subtract what this has grown by: a one-off compilation says nothing about the next call.
    """
    return _compilations.spent_s


__all__ = [
    "COMPILING",
    "compilation_begins",
    "compilation_ends",
    "compile_seconds",
    "on_compile",
]
