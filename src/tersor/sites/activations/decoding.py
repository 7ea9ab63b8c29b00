"""What backward asks for, decoded a few tensors at a time.

Backward asks for tensors in the reverse of the order in which they were encoded. A list of them takes the host as many
launches as one of them, and keeps a GPU busier. What is decoded ahead is bounded by the size of a window.
"""

from __future__ import annotations

from threading import RLock
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

import torch

from tersor.kernels.runtime.device_cache import raw_stream
from tersor.sites.activations.entry import Entry
from tersor.sites.activations.forms import Payloads, restored_together
from tersor.sites.activations.window import Encoded

_WINDOWS_AHEAD: Final = 2
"""Window sizes that tensors decoded ahead may take: a network has two kinds of saved tensors that take turns."""


class _Decoded(NamedTuple):
    """Values of an entry, which may be gone, and the address of the stream that they were decoded on."""

    entry: ReferenceType[Entry]
    values: torch.Tensor
    stream: int

    def is_of(self, entry: Entry, stream: int) -> bool:
        return self.entry() is entry and self.stream == stream


class Decoder:
    """Restores the entries of one forward pass; backward may call it from several threads.

    Values that nobody has used yet are held until they are, or until their entry is gone. Those of an entry that autograd saved
    more than once are held until another entry is asked for: a ReLU saves the output that the next convolution saves as its
    input, and their backward functions run one after the other.
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
            if self._last is not None and self._last.is_of(entry, stream):
                return self._last.values
            # first, so that its memory is free for the next
            self._last = None
            found = self._ahead.get(id(entry))
            if found is not None and found.is_of(entry, stream):
                del self._ahead[id(entry)]
            else:
                found = self._decoded(entry, stream)
            if entry.is_shared:
                self._last = found._replace(entry=ref(entry, self._forget_last))
            return found.values

    def _decoded(self, entry: Entry, stream: int) -> _Decoded:
        """Decode an entry, and with it what backward will ask for next."""
        form = entry.form
        if isinstance(form, Encoded):
            form.encoding.settle()
            form = entry.form
        if not isinstance(form, Payloads):
            return _Decoded(ref(entry), form.restored(), stream)
        before = self._before(form)
        own, *others = restored_together([form, *before.values()])
        for one, values in zip(before, others, strict=True):
            self._ahead[id(one)] = _Decoded(ref(one), values, stream)
        return _Decoded(ref(entry), own, stream)

    def _before(self, form: Payloads) -> dict[Entry, Payloads]:
        """Return the entries that were encoded just before, as many as there is room for, and their forms."""
        alive = {key: one for key, one in self._ahead.items() if one.entry() is not None}
        self._ahead = alive
        held_nbytes = sum(one.values.nbytes for one in alive.values())
        room_nbytes = min(self._window_nbytes, _WINDOWS_AHEAD * self._window_nbytes - held_nbytes)
        room_nbytes -= form.decoded_nbytes
        found: dict[Entry, Payloads] = {}
        for place in reversed(range(form.place)):
            entry = form.window[place]()
            other = None if entry is None or id(entry) in alive else entry.form
            if entry is None or not isinstance(other, Payloads):
                continue
            room_nbytes -= other.decoded_nbytes
            if room_nbytes < 0:
                break
            found[entry] = other
        return found

    def _forget_last(self, gone: ReferenceType[Entry]) -> None:
        with self._lock:
            if self._last is not None and self._last.entry is gone:
                self._last = None
