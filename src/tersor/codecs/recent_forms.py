"""What is remembered of calls by their form: codec, shape, dtype, device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class RecentForms(Generic[_T]):
    """One value per form; the form that was not asked for the longest is forgotten if there are too many.

    Example:
        >>> recent = RecentForms(max_forms=2)
        >>> for form in ("a", "b", "c"):
        ...     recent.put(form, len(recent))
        >>> recent.get("a"), recent.get("c")
        (None, 2)
    """

    def __init__(self, max_forms: int) -> None:
        """Start without forms."""
        self._max_forms = max_forms
        self._lock = Lock()
        self._found: OrderedDict[Hashable, _T] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of forms."""
        return len(self._found)

    def get(self, form: Hashable) -> _T | None:
        """Return the value of a form; None if there is none."""
        with self._lock:
            if form not in self._found:
                return None
            self._found.move_to_end(form)
            return self._found[form]

    def put(self, form: Hashable, value: _T) -> None:
        """Remember a value in place of an earlier one."""
        with self._lock:
            self._found[form] = value
            self._found.move_to_end(form)
            if len(self._found) > self._max_forms:
                self._found.popitem(last=False)

    def drop(self, form: Hashable) -> None:
        """Forget a form, if it is there."""
        with self._lock:
            self._found.pop(form, None)

    def clear(self) -> None:
        """Forget all forms."""
        with self._lock:
            self._found.clear()
