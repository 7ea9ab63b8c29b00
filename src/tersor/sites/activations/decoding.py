"""Decoding for backward, several tensors at a time.

Backward needs tensors in the reverse order of encoding. A list of them takes as many launches as one of them, and
uses a GPU better, so each request also decodes the entries encoded just before. Values decoded ahead take at most two
windows.
"""

from __future__ import annotations

from threading import RLock
from typing import Final
from weakref import ref

import torch

from tersor.kernels.runtime.device_cache import raw_stream
from tersor.memory import lacks_memory
from tersor.sites.activations.entry import Entry
from tersor.sites.activations.forms import WindowPayloads, restored_together
from tersor.sites.activations.window import PendingPayload

_WINDOWS_AHEAD: Final = 2
"""Limit on values decoded ahead, in window sizes; two kinds of saved tensors alternate in a network."""


class _Decoded:
    """Decoded values of an entry, released with the entry, and the handle of the stream that decoded them.

    The release takes no lock, because an entry may be freed at any point, also while a lock is held.
    """

    __slots__ = ("_entry", "_stream", "values")

    def __init__(self, entry: Entry, values: torch.Tensor, stream: int) -> None:
        self._entry, self._stream = ref(entry, self.forget), stream
        self.values: torch.Tensor | None = values

    def values_of(self, entry: Entry, stream: int) -> torch.Tensor | None:
        """Return the values if they belong to ``entry`` and were decoded on ``stream``; else None."""
        is_it = self._entry() is entry and self._stream == stream
        return self.values if is_it else None

    def forget(self, _: object = None) -> None:
        """Release the values; the callback of the weak reference, which keeps this object alive until it runs."""
        self.values = None


class Decoder:
    """Restores the entries of one forward pass; thread-safe.

    Values decoded ahead are held until they are used or their entry is freed. Values of an entry that backward needs
    more than once are held until another entry is requested: a ReLU saves the output that the next convolution saves
    as its input, and their backward functions run one after the other.
    """

    def __init__(self, window_nbytes: int) -> None:
        """Decode lists of at most ``window_nbytes`` bytes, or single tensors."""
        self._lock = RLock()
        self._window_nbytes = window_nbytes
        self._ahead: dict[int, _Decoded] = {}
        self._last: _Decoded | None = None

    def values_of(self, entry: Entry) -> torch.Tensor:
        """Return the values of an entry on the current stream, flat."""
        stream = raw_stream(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0
        with self._lock:
            values = None if self._last is None else self._last.values_of(entry, stream)
            if values is not None:
                return values
            if self._last is not None:
                # before decoding, which can then reuse the memory
                self._last.forget()
                self._last = None
            found = self._ahead.get(id(entry))
            values = None if found is None else found.values_of(entry, stream)
            if found is None or values is None:
                values = self._decoded(entry, stream)
            else:
                found.forget()
                del self._ahead[id(entry)]
            if entry.is_shared:
                self._last = _Decoded(entry, values, stream)
            return values

    def _decoded(self, entry: Entry, stream: int) -> torch.Tensor:
        """Decode an entry and, if memory allows, the entries that backward will probably need next."""
        form = entry.form
        if isinstance(form, PendingPayload):
            form.encoding.settle()
            form = entry.form
        if not isinstance(form, WindowPayloads):
            return form.restored()
        before = self._before(form)
        try:
            own, *others = restored_together([form, *before.values()])
        except (MemoryError, RuntimeError) as error:
            if not before or not lacks_memory(error):
                raise
            for held in self._ahead.values():
                held.forget()
            self._ahead.clear()
            return form.restored()
        for one, values in zip(before, others, strict=True):
            self._ahead[id(one)] = _Decoded(one, values, stream)
        return own

    def _before(self, form: WindowPayloads) -> dict[Entry, WindowPayloads]:
        """Return the entries encoded just before, with their forms, as many as the limits allow."""
        self._ahead = {key: one for key, one in self._ahead.items() if one.values is not None}
        held = [one.values for one in self._ahead.values()]
        held_nbytes = sum(values.nbytes for values in held if values is not None)
        room_nbytes = min(self._window_nbytes, _WINDOWS_AHEAD * self._window_nbytes - held_nbytes)
        room_nbytes -= form.decoded_nbytes
        found: dict[Entry, WindowPayloads] = {}
        for place in reversed(range(form.place)):
            entry = form.window[place]()
            other = None if entry is None or id(entry) in self._ahead else entry.form
            if entry is None or not isinstance(other, WindowPayloads):
                continue
            room_nbytes -= other.decoded_nbytes
            if room_nbytes < 0:
                break
            found[entry] = other
        return found
