"""Listening to numba's compiler, whose events are broadcast for real compilations only."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import event

from tersor.kernels.runtime.compile_notice import compilation_begins, compilation_ends


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports compilations, also nested ones and those that fail."""

    def on_start(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        compilation_begins()

    def on_end(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        compilation_ends()


@cache
def listen() -> None:
    """Report what numba compiles from now on to ``compile_notice``; later calls do nothing."""
    event.register("numba:compile", _Listener())
