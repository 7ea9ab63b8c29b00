"""A switch for when memory is short: nothing is then reserved for later calls or for possible needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_is_sparing: ContextVar[bool] = ContextVar("tersor_is_sparing", default=False)


@contextmanager
def sparing_memory() -> Iterator[None]:
    """Inside the block, capture and replay no graphs, and allocate no more memory than a call is known to need."""
    token = _is_sparing.set(True)
    try:
        yield
    finally:
        _is_sparing.reset(token)


def is_sparing() -> bool:
    """True inside ``sparing_memory``."""
    return _is_sparing.get()


def lastingly_sparing(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that runs inside ``sparing_memory`` whenever it is called, if it is made inside of it."""
    if not is_sparing():
        return function

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with sparing_memory():
            return function(*args, **kwargs)

    return run
