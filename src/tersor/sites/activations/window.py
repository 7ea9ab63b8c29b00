"""Windows: saved tensors on a GPU are collected and encoded as one list.

A list takes a dozen launches however many tensors it has. The sizes of its payloads are read once they have arrived,
at the latest when the second list after it is encoded, so the host does not wait for a device that lags behind. The
payloads then move to memory of their exact size. The window bounds both the tensors that wait and the workspace of
encoding.

For a single tensor larger than the window and than 256 MiB the host does wait: room for a payload of unknown size
would take as much memory again as the tensor, at the peak. On the CPU every tensor is encoded at once, in chunks,
because a window would only hold tensors longer.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import RLock
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import torch

from tersor.chunks import MAX_CHUNK_VALUES
from tersor.codecs import Codec, Packed
from tersor.container import Batch, begin_decode_batch, encode_batch
from tersor.container.batch import Part, runs_on_gpu
from tersor.kernels.runtime.device_cache import current_stream, is_current, stream_of
from tersor.memory import lacks_memory, return_free_memory
from tersor.raw_bytes import padded
from tersor.sites.activations.entry import Entry
from tersor.sites.activations.forms import (
    RETURN_FROM_NBYTES,
    NoValues,
    PackedForm,
    Unchanged,
    WindowPayloads,
    protect_from_reuse,
)
from tersor.types import TensorInfo

_log = logging.getLogger("tersor")
_CPU_CHUNK_VALUES: Final = 1 << 18
"""Chunk size on the CPU: the peak of a ResNet's step was 21.0 MB with whole tensors, 12.5 with chunks."""
_LARGE_NBYTES: Final = 256 << 20
"""For a larger tensor, if also larger than the window, the host waits for the size: 0.2 ms on an H200, which takes 2
to encode it."""
_MAX_UNSETTLED_LISTS: Final = 2
"""Encoded lists whose sizes may be outstanding. With one, the host waited 25 ms for sizes in the forward pass of GPT
125M, under a profiler."""
_MAX_WAITING_WINDOWS: Final = 2
"""Limit on all waiting tensors of all codecs and dtypes together, in window sizes."""
_OWN_MEMORY_NBYTES: Final = 1 << 16
NO_MEMORY: Final = "exact: no memory to encode"
_warned: set[str] = set()


class Window:
    """Collects entries of one device, stream, dtype and codec, and encodes them as lists.

    Attributes:
        waiting_nbytes: size of the tensors that wait to be encoded.
    """

    def __init__(
        self,
        limit_nbytes: int,
        codec: Codec,
        unsettled: deque[_EncodedList] | None = None,
        *,
        measures: bool = False,
    ) -> None:
        """Start an empty window.

        Args:
            limit_nbytes: encode as soon as tensors of this size wait.
            codec: the codec of all entries.
            unsettled: encoded lists whose payload sizes are outstanding; windows may share them.
            measures: decode every tensor after encoding, and set ``Entry.mse``.
        """
        self._limit_nbytes, self._codec, self._measures = limit_nbytes, codec, measures
        self._waiting: list[ReferenceType[Entry]] = []
        self.waiting_nbytes = self._encoded_nbytes = 0
        self._unsettled: deque[_EncodedList] = deque() if unsettled is None else unsettled
        self._is_on_gpu: bool | None = None
        self._stream: Any = None

    def add(self, entry: Entry, values: torch.Tensor) -> None:
        """Add an entry whose form is ``Unchanged(values)``, with flat values; on a CPU it is encoded at once."""
        if self._is_on_gpu is None:
            self._is_on_gpu = runs_on_gpu([values])
            self._stream = current_stream(values.device) if values.is_cuda else None
        if not self._is_on_gpu:
            self._encode_now(entry, values)
            return
        nbytes = values.nbytes
        if self.waiting_nbytes + nbytes > self._limit_nbytes:
            self.flush()
        self._waiting.append(ref(entry))
        self.waiting_nbytes += nbytes
        if self.waiting_nbytes >= self._limit_nbytes:
            self.flush()

    def _encode_now(self, entry: Entry, values: torch.Tensor) -> None:
        codec = self._codec
        try:
            packed = codec.pack(values, chunk_values=_CPU_CHUNK_VALUES)
            if self._measures:
                entry.mse = mean_square(codec.unpack(packed), values)
        except (MemoryError, RuntimeError) as error:
            _keep_if_no_memory(error, [entry])
            return
        entry.replace(PackedForm(_in_own_mapping(packed)), codec.codec_id)
        self._encoded_nbytes += values.nbytes
        if self._encoded_nbytes >= RETURN_FROM_NBYTES:
            # the tensors encoded before this one are freed by now
            self._encoded_nbytes = 0
            return_free_memory()

    def flush(self) -> None:
        """Encode the waiting entries and settle older lists; waits only for those, or for a very large tensor."""
        settle_oldest(self._unsettled, _MAX_UNSETTLED_LISTS - 1)
        waiting, self._waiting, self.waiting_nbytes = self._waiting, [], 0
        encodable = []
        for entry in (found for one in waiting if (found := one()) is not None):
            if entry.is_unchanged:
                encodable.append(entry)
            else:
                # modified in place: backward will raise, and its values are gone anyway
                values = entry.form.restored()
                entry.replace(NoValues(values.numel(), values.dtype, values.device))
        if not encodable:
            return
        least_nbytes = max(self._limit_nbytes, _LARGE_NBYTES)
        is_large = len(encodable) == 1 and encodable[0].form.nbytes > least_nbytes
        try:
            with _running_on(self._stream):
                encoding = _EncodedList(
                    encodable, self._codec, measures=self._measures, is_large=is_large
                )
        except (MemoryError, RuntimeError) as error:
            _keep_if_no_memory(error, encodable)
        else:
            self._unsettled.append(encoding)


class EncodingWindows:
    """The windows of one forward pass, by device, dtype, codec and stream."""

    def __init__(self, limit_nbytes: int, *, measures: bool) -> None:
        """Start without windows; see ``Window`` for the arguments."""
        self._limit_nbytes, self._measures = limit_nbytes, measures
        self._windows: dict[Any, Window] = {}
        self._unsettled: deque[_EncodedList] = deque()

    def add(self, entry: Entry, values: torch.Tensor, codec: Codec) -> None:
        """Add an entry whose form is ``Unchanged(values)``, with flat values, to the window of its codec."""
        key: Any = values.device, values.dtype, codec
        if values.is_cuda:
            # a list is encoded on the stream that computed its tensors
            key = *key, stream_of(values.device)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(
                self._limit_nbytes, codec, self._unsettled, measures=self._measures
            )
        window.add(entry, values)
        waiting_nbytes = sum([one.waiting_nbytes for one in self._windows.values()])
        if waiting_nbytes > _MAX_WAITING_WINDOWS * self._limit_nbytes:
            max(self._windows.values(), key=lambda one: one.waiting_nbytes).flush()

    def flush(self) -> None:
        """Encode the waiting entries of all windows."""
        for window in self._windows.values():
            window.flush()
        settle_oldest(self._unsettled, _MAX_UNSETTLED_LISTS)

    def clear(self) -> None:
        """Drop all windows and unsettled lists."""
        self._windows.clear()
        self._unsettled.clear()


class _EncodedList:
    """A list of entries that were encoded together, until the sizes of their payloads are read."""

    def __init__(
        self, entries: Sequence[Entry], codec: Codec, *, measures: bool, is_large: bool = False
    ) -> None:
        """Encode the entries and point them here; with ``is_large``, for a single entry, also settle at once."""
        self._lock = RLock()
        self._entries, self._codec = [ref(entry) for entry in entries], codec
        values = [entry.form.restored() for entry in entries]
        self._dtypes = [x.dtype for x in values]
        # a needless ``split`` takes 3 us
        parts = [
            (x,) if x.numel() <= MAX_CHUNK_VALUES else x.split(MAX_CHUNK_VALUES) for x in values
        ]
        self._numels = [tuple([part.numel() for part in split]) for split in parts]
        flat = [part for split in parts for part in split]
        encode = _encode_measured if is_large and not measures else encode_batch
        self._batch: Batch | None = encode(flat, [codec] * len(flat))
        device = values[0].device
        self._stream: Any = current_stream(device) if device.type == "cuda" else None
        if measures:
            infos = [TensorInfo.of(x) for x in flat]
            decoded = begin_decode_batch(self._batch, infos, [codec] * len(flat)).check()
            for entry, x, split in zip(entries, values, _split(decoded, parts), strict=True):
                entry.mse = mean_square(torch.cat(split), x)
        self._batch.read_ahead()
        for x in values:
            protect_from_reuse(x)
        for k, entry in enumerate(entries):
            entry.replace(PendingPayload(self, k, values[k].nbytes), codec.codec_id)
        if is_large:
            self.settle()

    @property
    def has_arrived(self) -> bool:
        """True if ``settle`` does not wait."""
        with self._lock:
            return self._batch is None or self._batch.has_arrived

    def settle(self) -> None:
        """Move every payload to memory of its exact size; waits for the encoding of this list only."""
        with self._lock:
            if self._batch is None:
                return
            with _running_on(self._stream):
                payloads = self._batch.payloads()
                needs_check = self._batch.has_second_pass
                self._batch = None
            start = 0
            for k, one in enumerate(self._entries):
                end = start + len(self._numels[k])
                entry = one()
                if entry is not None:
                    own = tuple(payloads[start:end])
                    form = WindowPayloads(
                        self._codec, own, self._numels[k], self._dtypes[k], self._stream, needs_check,
                        self._entries, k,
                    )  # fmt: skip
                    entry.replace(form)
                start = end


def settle_oldest(unsettled: deque[_EncodedList], most: int) -> None:
    """Settle lists whose sizes have arrived, oldest first, and wait until at most ``most`` are left."""
    while unsettled and (len(unsettled) > most or unsettled[0].has_arrived):
        try:
            unsettled[0].settle()
        except (MemoryError, RuntimeError) as error:
            # the list stays unsettled, in more memory than its payloads need
            _keep_if_no_memory(error, [])
            return
        unsettled.popleft()


def _running_on(stream: Any) -> AbstractContextManager[object]:
    """Make the encoding stream current: no other stream, such as the caller's, has waited for it."""
    return nullcontext() if stream is None or is_current(stream) else torch.cuda.stream(stream)


class PendingPayload(NamedTuple):
    """The form of an entry in an encoded list whose payload sizes are not read yet."""

    encoding: _EncodedList
    place: int
    nbytes: int

    def restored(self) -> torch.Tensor:
        """Settle the list, and decode the entry.

        Raises:
            RuntimeError: the entry is freed.
        """
        entry = self.encoding._entries[self.place]()  # noqa: SLF001 - its own kind
        self.encoding.settle()
        if entry is None:
            raise RuntimeError("a saved tensor was asked for after it was freed")
        return entry.form.restored()


def _encode_measured(xs: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> Batch:
    """Encode with the first codec, and allocate the payloads only when their sizes are known, which waits."""
    codec = codecs[0]
    bounds = [codec.own_bound()] * len(xs) if codec.takes_bound() else None
    return Batch.of_parts([Part(list(range(len(xs))), codec.encode(xs, bounds))])


def _in_own_mapping(packed: Packed) -> Packed:
    """Move payloads to a memory mapping of their own, which returns to the system when they are freed.

    On the heap they would fragment the memory that activations have just freed, and no activation would fit there
    again: a small ResNet's step held 352 MiB of resident memory for payloads of 18.
    """
    nbytes = [padded(payload.numel()) for payload in packed.payloads]
    if sum(nbytes) < _OWN_MEMORY_NBYTES:
        return packed
    memory = torch.frombuffer(mmap.mmap(-1, sum(nbytes)), dtype=torch.uint8).split(nbytes)
    pairs = zip(memory, packed.payloads, strict=True)
    moved = tuple(room[: payload.numel()].copy_(payload) for room, payload in pairs)
    return replace(packed, payloads=moved)


def _split(
    decoded: Sequence[torch.Tensor], like: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    parts = iter(decoded)
    return [[next(parts) for _ in split] for split in like]


def mean_square(decoded: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the difference, computed in chunks so that it does not set the peak."""
    total = torch.zeros((), dtype=torch.float32, device=values.device)
    for a, b in zip(decoded.split(1 << 22), values.split(1 << 22), strict=True):
        total += (a.float() - b.float()).square().sum()
    return total / max(1, values.numel())


def _keep_if_no_memory(error: BaseException, entries: Sequence[Entry]) -> None:
    """Leave entries unencoded if memory ran out, and log that once.

    Raises:
        BaseException: ``error``, if it is anything else.
    """
    if not lacks_memory(error):
        raise error
    for entry in entries:
        form = entry.form
        if isinstance(form, Unchanged):
            entry.replace(form, NO_MEMORY)
    if NO_MEMORY not in _warned:
        _warned.add(NO_MEMORY)
        _log.warning(
            "there is not enough memory to encode saved activations, which are kept as they are; take a "
            "smaller window_nbytes or a smaller batch (%s)", str(error).split("\n", 1)[0]
        )  # fmt: skip
