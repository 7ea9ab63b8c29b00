"""Listen to numba's compiler, which broadcasts events for real compilations only, not for cache hits."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import event

from tersor.kernels.runtime.compile_notice import compilation_begins, compilation_ends


class _Listener(event.Listener):  # type: ignore[misc]
    """Reports compilations, including nested and failing ones."""

    def on_start(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        compilation_begins()

    def on_end(self, event: Any) -> None:  # noqa: ARG002 (numba's signature)
        compilation_ends()


@cache
def listen() -> None:
    """Report all further numba compilations to ``compile_notice``; idempotent."""
    event.register("numba:compile", _Listener())
