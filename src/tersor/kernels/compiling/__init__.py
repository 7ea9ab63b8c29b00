"""Saying when a kernel is compiled for this machine: a pause of seconds that happens once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Final

COMPILING: Final = "compiling kernels for this machine (once per kernel, then cached)..."


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
    """Warn in the logger ``tersor`` when a kernel is first compiled in this process.

    Python prints a warning that no handler takes, so a user sees why the first call pauses. The
    second call and every later one do nothing, and nothing is logged inside ``on_compile``, whose
    callback tells it already.
    """
    if find_spec("numba") is not None:
        from tersor.kernels.compiling.cpu import log_first_compile as log_first_numba_compile

        log_first_numba_compile()


__all__ = ["COMPILING", "log_first_compile", "on_compile"]
