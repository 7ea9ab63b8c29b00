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
    from tersor.kernels.runtime.cpu.compile_events import on_compile as on_numba_compile

    return on_numba_compile(callback)


def log_first_compile() -> None:
    """Warn in the logger ``tersor`` when a kernel is first compiled in this process.

    Python prints a warning that no handler takes, so a user sees why the first call pauses. The
    second call and every later one do nothing, and nothing is logged inside ``on_compile``, whose
    callback tells it already.
    """
    if find_spec("numba") is not None:
        from tersor.kernels.runtime.cpu.compile_events import (
            log_first_compile as log_first_numba_compile,
        )

        log_first_numba_compile()


def count_numba_compiles() -> None:
    """Let ``compile_seconds`` count what numba compiles from now on; later calls do nothing."""
    if find_spec("numba") is not None:
        from tersor.kernels.runtime.cpu.compile_events import count_compiles

        count_compiles()


def count_triton_compiles() -> None:
    """Let ``compile_seconds`` count what Triton compiles from now on; later calls do nothing."""
    from tersor.kernels.runtime.gpu.compile_events import count_compiles

    count_compiles()


def compile_seconds() -> float:
    """Return the seconds that this process has spent compiling kernels.

    Whoever times a call takes the growth of this off it: what is compiled once says nothing of the
    next call. Compilations that overlap count once with numba, and each with Triton.
    """
    return _spent_s[0]


def add_compile_seconds(seconds: float) -> None:
    """Count seconds of a compilation; for those who listen to the compilers."""
    _spent_s[0] += seconds


_spent_s: Final = [0.0]

__all__ = [
    "COMPILING",
    "add_compile_seconds",
    "compile_seconds",
    "count_numba_compiles",
    "count_triton_compiles",
    "log_first_compile",
    "on_compile",
]
