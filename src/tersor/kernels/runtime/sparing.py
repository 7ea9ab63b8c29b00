"""A switch for when memory is short: nothing is then reserved for later calls or for possible needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_sparing: ContextVar[bool] = ContextVar("tersor_is_sparing", default=False)


@contextmanager
def sparing_memory() -> Iterator[None]:
    """Inside the block, capture no graphs and allocate no more memory than a call is known to need."""
    token = _is_sparing.set(True)
    try:
        yield
    finally:
        _is_sparing.reset(token)


def is_sparing() -> bool:
    """True inside ``sparing_memory``."""
    return _is_sparing.get()
