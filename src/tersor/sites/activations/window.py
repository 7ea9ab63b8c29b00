"""Saved tensors wait until there are enough of them, and are then encoded as one list.

On a GPU a list takes a dozen launches however many tensors it has. The sizes of its payloads are read when the
second list after it is encoded, or as soon as they are there, so that the host does not wait for a device that is behind it; then the payloads move to
memory of their exact size. What waits and what encoding takes is bounded by the window. For a tensor that is larger than the window the host waits: room for a
payload of any size would be as large again as the tensor, at the peak. On the CPU every tensor is encoded at once, part by part: there
a window would only keep tensors longer.
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
from tersor.kernels.runtime.device_cache import stream_of
from tersor.memory import lacks_memory, return_free_memory
from tersor.raw_bytes import padded
from tersor.sites.activations.entry import Entry
from tersor.sites.activations.forms import (
    RETURN_FROM_NBYTES,
    Blank,
    PackedForm,
    Payloads,
    Whole,
)
from tersor.types import TensorInfo

_log = logging.getLogger("tersor")
_CPU_CHUNK_VALUES: Final = 1 << 18
"""Of tensors encoded on the CPU: the peak of a ResNet's step was 21.0 MB with whole tensors, 12.5 with chunks."""
_LARGE_NBYTES: Final = 256 << 20
"""From here on a tensor larger than the window waits for its size: 0.2 ms of an H200 that takes 2 to encode it."""
_WINDOWS_LATE: Final = 2
"""With one, the host waited 25 ms for sizes in the forward pass of GPT 125M, under a profiler."""
_WAITING_WINDOWS: Final = 2
"""Sizes of a window that tensors of several codecs and dtypes may take while they wait."""
_OWN_MEMORY_NBYTES: Final = 1 << 16
NO_MEMORY: Final = "exact: no memory to encode"
_warned: set[str] = set()


class Window:
    """Entries of one device, stream and dtype on their way to a smaller form, by one codec.

    Attributes:
        waiting_nbytes: bytes of tensors that wait.
    """

    def __init__(
        self,
        limit_nbytes: int,
        codec: Codec,
        unsettled: deque[_Encoding] | None = None,
        *,
        measures: bool = False,
    ) -> None:
        """Encode whenever so many bytes wait; with ``measures`` also say what decoding changes.

        Encodings whose sizes nobody has read yet are in ``unsettled``, which windows may share.
        """
        self._limit_nbytes, self._codec, self._measures = limit_nbytes, codec, measures
        self._waiting: list[ReferenceType[Entry]] = []
        self.waiting_nbytes = self._encoded_nbytes = 0
        self._unsettled: deque[_Encoding] = deque() if unsettled is None else unsettled
        self._stream: Any = None

    def add(self, entry: Entry, values: torch.Tensor) -> None:
        """Take an entry whose form is ``Whole(values)``, flat."""
        if not runs_on_gpu([values]):
            self._encode_now(entry, values)
            return
        if self.waiting_nbytes + values.nbytes > self._limit_nbytes:
            self.flush()
        if values.is_cuda and self._stream is None:
            self._stream = torch.cuda.current_stream(values.device)
        self._waiting.append(ref(entry))
        self.waiting_nbytes += values.nbytes
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
        entry.replace(PackedForm(_apart(packed)), codec.codec_id)
        self._encoded_nbytes += values.nbytes
        if self._encoded_nbytes >= RETURN_FROM_NBYTES:
            # what was encoded before this tensor is free by now
            self._encoded_nbytes = 0
            return_free_memory()

    def flush(self) -> None:
        """Encode what waits, without waiting for the device; settle what was encoded before."""
        settle_oldest(self._unsettled, _WINDOWS_LATE - 1)
        waiting, self._waiting, self.waiting_nbytes = self._waiting, [], 0
        encodable = []
        for entry in (found for one in waiting if (found := one()) is not None):
            if entry.is_unchanged:
                encodable.append(entry)
            else:
                # backward will say so; the values that it would need are gone
                values = entry.form.restored()
                entry.replace(Blank(values.numel(), values.dtype, values.device))
        if not encodable:
            return
        least_nbytes = max(self._limit_nbytes, _LARGE_NBYTES)
        is_large = len(encodable) == 1 and encodable[0].form.nbytes > least_nbytes
        try:
            encoding = _Encoding(encodable, self._codec, measures=self._measures, is_large=is_large)
        except (MemoryError, RuntimeError) as error:
            _keep_if_no_memory(error, encodable)
        else:
            self._unsettled.append(encoding)


class Windows:
    """The windows of one forward pass."""

    def __init__(self, limit_nbytes: int, *, measures: bool) -> None:
        """Make windows of ``limit_nbytes``; with ``measures`` they also say what decoding changes."""
        self._limit_nbytes, self._measures = limit_nbytes, measures
        self._windows: dict[Any, Window] = {}
        self._unsettled: deque[_Encoding] = deque()

    def add(self, entry: Entry, values: torch.Tensor, codec: Codec) -> None:
        """Take an entry whose form is ``Whole(values)``, flat, to be encoded by a codec."""
        key: Any = values.device, values.dtype, codec
        if values.is_cuda:
            # lists are encoded on the stream that made their tensors
            key = *key, stream_of(values.device)
        if key not in self._windows:
            self._windows[key] = Window(
                self._limit_nbytes, codec, self._unsettled, measures=self._measures
            )
        self._windows[key].add(entry, values)
        waiting_nbytes = sum(one.waiting_nbytes for one in self._windows.values())
        if waiting_nbytes > _WAITING_WINDOWS * self._limit_nbytes:
            max(self._windows.values(), key=lambda one: one.waiting_nbytes).flush()

    def flush(self) -> None:
        """Encode what waits."""
        for window in self._windows.values():
            window.flush()
        settle_oldest(self._unsettled, _WINDOWS_LATE)

    def clear(self) -> None:
        """Forget the windows."""
        self._windows.clear()
        self._unsettled.clear()


class _Encoding:
    """A list of entries that were encoded together."""

    def __init__(
        self, entries: Sequence[Entry], codec: Codec, *, measures: bool, is_large: bool = False
    ) -> None:
        """Encode, and let every entry find its payloads here; with ``is_large``, one entry, wait for them."""
        self._lock = RLock()
        self._entries, self._codec = [ref(entry) for entry in entries], codec
        values = [entry.form.restored() for entry in entries]
        self._dtypes = [x.dtype for x in values]
        parts = [x.split(MAX_CHUNK_VALUES) for x in values]
        self._numels = [tuple(part.numel() for part in split) for split in parts]
        flat = [part for split in parts for part in split]
        encode = _encode_measured if is_large and not measures else encode_batch
        self._batch: Batch | None = encode(flat, [codec] * len(flat))
        device = values[0].device
        self._stream: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None
        if measures:
            infos = [TensorInfo.of(x) for x in flat]
            decoded = begin_decode_batch(self._batch, infos, [codec] * len(flat)).check()
            for entry, x, split in zip(entries, values, _split(decoded, parts), strict=True):
                entry.mse = mean_square(torch.cat(split), x)
        self._batch.read_ahead()
        for k, entry in enumerate(entries):
            entry.replace(Encoded(self, k, values[k].nbytes), codec.codec_id)
        if is_large:
            self.settle()

    @property
    def has_arrived(self) -> bool:
        """True if ``settle`` waits for nothing."""
        with self._lock:
            return self._batch is None or self._batch.has_arrived

    def settle(self) -> None:
        """Move every payload to memory of its own size; waits only for the encoding itself."""
        with self._lock:
            if self._batch is None:
                return
            with _running_on(self._stream):
                payloads = self._batch.payloads()
                is_checked = self._batch.has_second_pass
                self._batch = None
            start = 0
            for k, one in enumerate(self._entries):
                end = start + len(self._numels[k])
                entry = one()
                if entry is not None:
                    own = tuple(payloads[start:end])
                    form = Payloads(
                        self._codec, own, self._numels[k], self._dtypes[k], self._stream, is_checked,
                        self._entries, k,
                    )  # fmt: skip
                    entry.replace(form)
                start = end


def settle_oldest(unsettled: deque[_Encoding], most: int) -> None:
    """Settle encodings whose sizes are there, and wait for those of the oldest until at most so many are left."""
    while unsettled and (len(unsettled) > most or unsettled[0].has_arrived):
        try:
            unsettled[0].settle()
        except (MemoryError, RuntimeError) as error:
            # the list stays where it is: in more memory than its payloads take
            _keep_if_no_memory(error, [])
            return
        unsettled.popleft()


def _running_on(stream: Any) -> AbstractContextManager[object]:
    """Launch on the stream that made the tensors, whichever the caller is on: none other has waited for it."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class Encoded(NamedTuple):
    """The place of an entry in a list whose sizes nobody knows yet."""

    encoding: _Encoding
    place: int
    nbytes: int

    def restored(self) -> torch.Tensor:
        """Settle the list, and decode."""
        entry = self.encoding._entries[self.place]()  # noqa: SLF001 - its own kind
        self.encoding.settle()
        if entry is None:
            raise RuntimeError("a saved tensor was asked for after it was freed")
        return entry.form.restored()


def _encode_measured(xs: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> Batch:
    """Encode tensors with the first codec; memory for their payloads is taken when their sizes are known."""
    codec = codecs[0]
    bounds = [codec.own_bound()] * len(xs) if codec.takes_bound() else None
    return Batch.of_parts([Part(list(range(len(xs))), codec.encode(xs, bounds))])


def _apart(packed: Packed) -> Packed:
    """Move payloads to memory of their own, which goes back to the system when they are gone.

    From the heap, each would take a piece of what an activation has just freed, so that no activation fits there any more:
    a small ResNet's step held 352 MiB of resident memory for payloads of 18.
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
    """Return the mean square of the difference, in chunks: a whole one would be the peak."""
    total = torch.zeros((), dtype=torch.float32, device=values.device)
    for a, b in zip(decoded.split(1 << 22), values.split(1 << 22), strict=True):
        total += (a.float() - b.float()).square().sum()
    return total / max(1, values.numel())


def _keep_if_no_memory(error: BaseException, entries: Sequence[Entry]) -> None:
    """Keep entries as they are where memory ended, and say so once.

    Raises:
        BaseException: the error, if it is another one.
    """
    if not lacks_memory(error):
        raise error
    for entry in entries:
        form = entry.form
        if isinstance(form, Whole):
            entry.replace(form, NO_MEMORY)
    if NO_MEMORY not in _warned:
        _warned.add(NO_MEMORY)
        _log.warning(
            "there is not enough memory to encode saved activations, which are kept as they are; take a "
            "smaller window_nbytes or a smaller batch (%s)", str(error).split("\n", 1)[0]
        )  # fmt: skip
