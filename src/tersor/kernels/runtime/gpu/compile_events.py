"""Listen to Triton's compiler.

Triton calls ``knobs.compilation.listener`` after a compilation, and ``knobs.runtime.jit_cache_hook`` before
it knows whether its cache on disk has the kernel. ``ASTSource.make_ir`` is the first step of a real compilation and
of nothing else (Triton 3.6 and 3.7). It is therefore what is wrapped, which leaves the knobs to the user.
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
    """This thread's current first launch, for which Triton may have to compile."""

    is_first: bool = False
    compiles: bool = False


_launch: Final = _Launch()


@contextmanager
def first_launch() -> Iterator[None]:
    """If Triton compiles a kernel inside the block, report a compilation that lasts until the block ends.

    Compilations outside such blocks, like those of ``torch.compile``, are not reported.
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
    # not public API; with a Triton that lacks it, compilations go unannounced
    if make_ir is None:
        return

    @wraps(make_ir)
    def watched(*arguments: Any, **options: Any) -> Any:
        if _launch.is_first and not _launch.compiles:
            _launch.compiles = True
            compilation_begins()
        return make_ir(*arguments, **options)

    ASTSource.make_ir = watched
