"""Listening to numba's compiler, whose events are broadcast for real compilations only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, Final

from numba.core import event

_KIND: Final = "numba:compile"


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


class _FirstOnly(event.Listener):  # type: ignore[misc]
    """Logs one line for the first compilation, then stays silent."""

    def __init__(self) -> None:
        self._logged = False

    def on_start(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        if not self._logged:
            self._logged = True
            logging.getLogger("tersor").info(
                "compiling kernels for this machine; the result is cached on disk"
            )

    def on_end(self, event: Any) -> None:
        pass


@contextmanager
def on_compile(callback: Callable[[bool], None]) -> Iterator[None]:
    """See ``tersor.kernels.compiling.on_compile``."""
    listener = _Edges(callback)
    event.register(_KIND, listener)
    try:
        yield
    finally:
        event.unregister(_KIND, listener)


@cache
def log_first_compile() -> None:
    """See ``tersor.kernels.compiling.log_first_compile``."""
    event.register(_KIND, _FirstOnly())
