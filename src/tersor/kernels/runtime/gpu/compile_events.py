"""Listening to Triton's compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

from triton import knobs

from tersor.kernels.runtime.compile_notice import add_compile_seconds


@cache
def count_compiles() -> None:
    """See ``tersor.kernels.runtime.compile_notice.count_triton_compiles``; a listener that is there stays."""
    before = knobs.compilation.listener

    def listener(*, times: Any, **facts: Any) -> None:
        add_compile_seconds(1e-6 * times.total)
        if before is not None:
            before(times=times, **facts)

    knobs.compilation.listener = listener
