"""Listening to numba's compiler, whose events are broadcast for real compilations only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, Final

from numba.core import event

from tersor.kernels.runtime.compile_notice import COMPILING, add_compile_seconds

_KIND: Final = "numba:compile"
_telling: Final[list[event.Listener]] = []
"""Listeners of the blocks of ``on_compile`` that are open now."""


class _Edges(event.Listener):  # type: ignore[misc]
    """Reports the first start and the last end of compilations that overlap."""

    def __init__(self, callback: Callable[[bool], None]) -> None:
        self._callback = callback
        self._num_running = 0
        self._lock = Lock()

    def on_start(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        with self._lock:
            self._num_running += 1
            if self._num_running == 1:
                self._callback(True)

    def on_end(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        with self._lock:
            self._num_running -= 1
            if self._num_running == 0:
                self._callback(False)


class _Clock:
    """Counts the seconds between the edges of compilations."""

    def __init__(self) -> None:
        self._begin = 0.0

    def __call__(self, active: bool) -> None:
        if active:
            self._begin = time.perf_counter()
        else:
            add_compile_seconds(time.perf_counter() - self._begin)


class _FirstOnly(event.Listener):  # type: ignore[misc]
    """Warns of the first compilation that nobody else tells of, then stays silent."""

    def __init__(self) -> None:
        self._logged = False

    def on_start(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        if not self._logged and not _telling:
            self._logged = True
            logging.getLogger("tersor").warning(COMPILING)

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def on_compile(callback: Callable[[bool], None]) -> Iterator[None]:
    """See ``tersor.kernels.runtime.compile_notice.on_compile``."""
    listener = _Edges(callback)
    _telling.append(listener)
    event.register(_KIND, listener)
    try:
        yield
    finally:
        event.unregister(_KIND, listener)
        _telling.remove(listener)


@cache
def log_first_compile() -> None:
    """See ``tersor.kernels.runtime.compile_notice.log_first_compile``."""
    event.register(_KIND, _FirstOnly())


@cache
def count_compiles() -> None:
    """See ``tersor.kernels.runtime.compile_notice.count_numba_compiles``."""
    event.register(_KIND, _Edges(_Clock()))
