"""Watching Triton's compiler.

Triton calls ``knobs.compilation.listener`` when a compilation is over, and ``knobs.runtime.jit_cache_hook`` before
it knows whether its cache on disk has the kernel. ``ASTSource.make_ir`` is the first step of a real compilation and
of nothing else (Triton 3.6 and 3.7), so that is watched, and the knobs are left to the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from threading import local
from typing import Any, Final

from triton.compiler import ASTSource

from tersor.kernels.runtime.compile_notice import compilation_begins, compilation_ends


class _Launch(local):
    """The launch of this thread for which Triton may have to compile."""

    is_first: bool = False
    compiles: bool = False


_launch: Final = _Launch()


@contextmanager
def first_launch() -> Iterator[None]:
    """Report to ``compile_notice`` if Triton compiles a kernel inside the block, until the block ends.

    The compilations of others, as those of ``torch.compile``, are not reported.
    """
    _watch_compiler()
    _launch.is_first, _launch.compiles = True, False
    try:
        yield
    finally:
        _launch.is_first = False
        if _launch.compiles:
            compilation_ends()


@cache
def _watch_compiler() -> None:
    make_ir: Any = getattr(ASTSource, "make_ir", None)
    # it is not public; a Triton without it compiles unannounced
    if make_ir is None:
        return

    @wraps(make_ir)
    def watched(*arguments: Any, **options: Any) -> Any:
        if _launch.is_first and not _launch.compiles:
            _launch.compiles = True
            compilation_begins()
        return make_ir(*arguments, **options)

    ASTSource.make_ir = watched
