"""A bounded cache of per-call state, keyed by the form of a call: codec, shape, dtype and device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class LruCache(Generic[_T]):
    """A thread-safe least-recently-used cache with one value per form.

    Example:
        >>> cache = LruCache(max_forms=2)
        >>> for form in ("a", "b", "c"):
        ...     cache.put(form, len(cache))
        >>> cache.get("a"), cache.get("c")
        (None, 2)
    """

    def __init__(self, max_forms: int) -> None:
        """Create an empty cache that holds at most ``max_forms`` entries."""
        self._max_forms = max_forms
        self._lock = Lock()
        self._found: OrderedDict[Hashable, _T] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of cached forms."""
        return len(self._found)

    def get(self, form: Hashable) -> _T | None:
        """Return the value of a form and mark it as recently used; None if it is not cached."""
        with self._lock:
            if form not in self._found:
                return None
            self._found.move_to_end(form)
            return self._found[form]

    def put(self, form: Hashable, value: _T) -> None:
        """Set the value of a form; evict the least recently used form if the cache is full."""
        with self._lock:
            self._found[form] = value
            self._found.move_to_end(form)
            if len(self._found) > self._max_forms:
                self._found.popitem(last=False)

    def drop(self, form: Hashable) -> None:
        """Remove a form if it is cached."""
        with self._lock:
            self._found.pop(form, None)

    def clear(self) -> None:
        """Remove all forms."""
        with self._lock:
            self._found.clear()
