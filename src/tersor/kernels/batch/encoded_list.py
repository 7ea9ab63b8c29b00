"""Payloads of a list of tensors, as batch operations write and read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import torch

from tersor.errors import SpecError
from tersor.kernels.payload import frame_places
from tersor.kernels.payload.frame import pack_frame
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.quantize.grid import Range
from tersor.kernels.quantize.range_keys import ranges_of_keys
from tersor.kernels.runtime.device_cache import to_device_async
from tersor.kernels.runtime.readback import Readback
from tersor.raw_bytes import padded

_R = TypeVar("_R")
_NO_STATUS: Final = torch.empty(0, dtype=torch.int32, device="cpu")


class SecondPass(NamedTuple):
    """The tensors that a fused kernel left to another operation.

    Attributes:
        needed: int32 per tensor, on the device; nonzero if the tensor is left.
        encode: returns the payload of tensor ``k``.
    """

    needed: torch.Tensor
    encode: Callable[[int], torch.Tensor]


class Unwritten(NamedTuple):
    """Payloads whose sizes are decided on the device, but which are not written yet.

    Attributes:
        capacity: bytes that hold the payloads in the worst case.
        xs: the tensors, which ``write`` reads again.
        state: the device memory that ``write`` needs; None if it cannot be copied elsewhere.
        write: takes ``state`` and a number of bytes, allocates that many bytes, writes the payloads that fit
            without waiting, and returns the memory.
    """

    capacity: int
    xs: Sequence[torch.Tensor]
    state: tuple[torch.Tensor, ...] | None
    write: Callable[[Any, int], torch.Tensor]

    def written(self, nbytes: int) -> torch.Tensor:
        """Return new memory of ``nbytes`` bytes with the payloads that fit."""
        return self.write(self.state, nbytes)


class Undecoded(NamedTuple):
    """The state of a decoding that has not been waited for.

    Attributes:
        status: int32 per tensor, on the device: 0 if it is decoded. Otherwise its payload is malformed, or of a
            form that the fused kernel does not know, and the tensor is undefined. For a frame with
            ``EncodedList.least_nbytes``, one more number comes first, nonzero if the frame's sizes are impossible.
        decode: decodes a tensor from its payload, or raises ``CorruptDataError``; may wait.
        again: repeats this call for other payloads and tensors of the same form; None if it cannot be repeated.
    """

    status: torch.Tensor
    decode: Callable[[torch.Tensor, torch.Tensor], None]
    again: DecodingAgain | None = None

    def without_status(self) -> Undecoded:
        """Return a copy that holds no memory on the device, to decode further lists."""
        return self._replace(status=_NO_STATUS)


class DecodingAgain(Protocol):
    """Decodes payloads into tensors of one form, without checking the form.

    ``pointers`` are the addresses to write to. ``places`` locate the payloads: for a frame, its address, the
    address of its sizes, and its number of bytes; for separate payloads, the address of each, then the size of
    each. Both methods return None if the call cannot be repeated at the moment.
    """

    def begin(self, pointers: tuple[int, ...], places: tuple[int, ...]) -> torch.Tensor | None:
        """Decode without waiting; return the status."""

    def wait(
        self, pointers: tuple[int, ...], places: tuple[int, ...], meanwhile: Callable[[], _R]
    ) -> tuple[list[int], _R] | None:
        """Decode, call ``meanwhile`` while the device works, and wait; return the status and the result of ``meanwhile``."""


@dataclass(frozen=True, slots=True)
class EncodedList:
    """Payloads in one buffer, or as separate tensors.

    Attributes:
        sizes: bytes of each payload; int64 on the device if the host does not know them.
        buffer: uint8, the payloads back to back, each padded with zeros to a multiple of 8 bytes;
            memory after the last one is not written. None if the payloads are separate or not written.
        parts: the payloads, if they are separate tensors.
        offsets: int64 on the device, the start of each payload, for a list to decode whose sizes the
            host does not know.
        least_nbytes: the smallest possible size of each payload, for a frame to decode whose sizes are
            unchecked. The decoder checks them, and reports the result in the status.
        ranges: the range of each tensor for which encoding computed it. If the sizes are on the device,
            so are the ranges, as the keys of ``quantize.range_keys``.
        unwritten: writes the payloads, if a kernel decides their sizes first.
        second_pass: tensors that are stored exactly for now; ``settled`` encodes them.
        device_sizes: a copy of the sizes on the device, if encoding put one there.
        status: int32 zeros on the device that a decoder may use for its status, which saves a launch.
        again: repeats this encoding for other tensors of the same form and bounds, without checking the
            form; returns None if that is impossible at the moment.
    """

    sizes: Sequence[int] | torch.Tensor
    buffer: torch.Tensor | None = None
    parts: Sequence[torch.Tensor] | None = None
    offsets: torch.Tensor | None = None
    least_nbytes: Sequence[int] | None = None
    ranges: Sequence[Range | None] | torch.Tensor | None = None
    unwritten: Unwritten | None = field(default=None, repr=False)
    second_pass: SecondPass | None = field(default=None, repr=False)
    device_sizes: torch.Tensor | None = None
    status: torch.Tensor | None = None
    again: Callable[[Sequence[torch.Tensor]], EncodedList | None] | None = field(
        default=None, repr=False
    )

    @classmethod
    def apart(
        cls,
        payloads: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor] | None = None,
        ranges: Sequence[Range | None] | None = None,
    ) -> EncodedList:
        """Return a list of payloads that are separate tensors.

        ``tensors`` are the encoded tensors: a payload too small for its tensor is padded with zeros to
        the smallest size that readers accept.
        """
        if tensors is not None:
            pairs = zip(payloads, tensors, strict=True)
            payloads = [_at_least(payload, x.numel()) for payload, x in pairs]
        return cls([payload.numel() for payload in payloads], parts=payloads, ranges=ranges)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.sizes)

    @property
    def is_settled(self) -> bool:
        """True if the host knows all sizes."""
        return not isinstance(self.sizes, torch.Tensor)

    @property
    def may_overflow(self) -> bool:
        """True if the memory may be too small, in which case some payloads are not written."""
        if self.unwritten is None or self.buffer is None:
            return False
        return self.buffer.numel() < self.unwritten.capacity

    def written(self, nbytes: int | None = None) -> EncodedList:
        """Return the list with all payloads that fit into ``nbytes`` bytes written, without waiting.

        By default all payloads fit. If some do not, ``settled`` writes the list again.
        """
        if self.unwritten is None or self.buffer is not None:
            return self
        capacity = self.unwritten.capacity
        room = capacity if nbytes is None else min(capacity, nbytes)
        buffer = self.unwritten.written(room)
        # if all fit, nothing is written again, and the tensors need not be kept alive
        return replace(self, buffer=buffer, unwritten=None if room == capacity else self.unwritten)

    def payloads(self) -> list[torch.Tensor]:
        """Return the payloads of a settled list as views, of a copy if more than a sixteenth of the memory is unused.

        Raises:
            SpecError: only the device knows their sizes.
        """
        if self.parts is not None:
            return list(self.parts)
        if not self.is_settled:
            raise SpecError("the sizes of the payloads are on the device; read them with settled")
        buffer = cast("torch.Tensor", self.buffer)
        sizes = list(self.sizes)
        rooms = [padded(size) for size in sizes]
        nbytes = sum(rooms)
        used = buffer[:nbytes]
        used = used.clone() if 16 * nbytes < 15 * buffer.numel() else used
        # one call for all views: single slices took half of the host's time after its wait
        if rooms == sizes:
            return list(used.split_with_sizes(sizes))
        lengths = [
            part for size, room in zip(sizes, rooms, strict=True) for part in (size, room - size)
        ]
        return list(used.split_with_sizes(lengths)[::2])

    def frame(self) -> torch.Tensor:
        """Return the payloads in one buffer, laid out as ``payload.frame`` says.

        Raises:
            SpecError: the payloads are not written yet.
        """
        if self.parts is not None:
            return pack_frame(self.parts)
        if self.buffer is None:
            raise SpecError("the payloads are not written yet; call written, or settled to wait")
        return self.buffer

    def places(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return a buffer, the offsets of the payloads from it and their sizes on the device, and a status or None.

        The status is that of ``frame_places``, for a frame whose sizes are unchecked.
        """
        if isinstance(self.sizes, torch.Tensor):
            if self.least_nbytes is not None:
                room_nbytes = self.frame().numel()
                offsets, sizes, status = frame_places(self.sizes, self.least_nbytes, room_nbytes)
                return self.frame(), offsets, sizes, status
            return self.frame(), cast("torch.Tensor", self.offsets), self.sizes, None
        payloads = self.payloads()
        # not always the first: an empty payload has no address
        origin = max(payloads, key=torch.Tensor.numel)
        starts = [payload.data_ptr() - origin.data_ptr() for payload in payloads]
        table = to_device_async([starts, list(self.sizes)], torch.int64, origin.device)
        return origin, table[0], table[1], None


def all_undecoded(encoded: EncodedList) -> torch.Tensor:
    """Return the status, as in ``Undecoded``, of a list in one buffer with nothing decoded yet."""
    buffer, _, sizes, checked = encoded.places()
    if checked is None:
        return torch.ones(len(sizes), dtype=torch.int32, device=buffer.device)
    checked[1:] = 1
    return checked


def finish_decoding(
    undecoded: Undecoded | None, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> None:
    """Wait, then decode the tensors that the device has left, given the payloads of all tensors.

    Raises:
        CorruptDataError: a payload is malformed.
    """
    if undecoded is None:
        return
    for k, state in enumerate(undecoded.status.tolist()):
        if state:
            undecoded.decode(outs[k], payloads[k])


def _at_least(payload: torch.Tensor, num_values: int) -> torch.Tensor:
    missing = (num_values >> MAX_VALUES_PER_BYTE_LOG2) - payload.numel()
    return payload if missing <= 0 else torch.cat([payload, payload.new_zeros(missing)])


def settled(lists: Sequence[EncodedList], dtype: torch.dtype | None = None) -> list[EncodedList]:
    """Return the lists with sizes known to the host, all payloads written, and second passes done.

    Waits for the device once for all lists, and not at all if no list needs it. Passing ``dtype``, that of
    the tensors, requests their ranges too.
    """
    waiting = [one for one in lists if not one.is_settled]
    if not waiting:
        return list(lists)
    facts = _read([part for one in waiting for part in _facts(one, dtype is not None)])
    return [one if one.is_settled else _settle(one, facts, dtype) for one in lists]


class Settling:
    """An asynchronous ``settled``: sizes are copied from the device while the host continues."""

    def __init__(self, lists: Sequence[EncodedList], dtype: torch.dtype | None = None) -> None:
        """Start to read the sizes, and with ``dtype`` the ranges as in ``settled``, without waiting."""
        self._lists, self._dtype = lists, dtype
        self._lock = Lock()
        waiting = [one for one in lists if not one.is_settled]
        self._tensors = [part for one in waiting for part in _facts(one, dtype is not None)]
        self._readback: Readback | None = None
        if not self._tensors or not self._tensors[0].is_cuda:
            return
        parts = [x.view(torch.uint8) for x in self._tensors]
        self._readback = Readback.receiving(parts[0] if len(parts) == 1 else torch.cat(parts))

    @property
    def has_arrived(self) -> bool:
        """True if the sizes have arrived, so that ``finish`` need not wait for them."""
        readback = self._readback
        return readback is None or readback.has_arrived

    def finish(self, written: Sequence[EncodedList] | None = None) -> list[EncodedList]:
        """Return what ``settled`` does, without waiting for work that was enqueued after the start.

        ``written`` are the same lists, if their payloads were written since.
        """
        lists, facts = self._lists if written is None else written, self._arrived()
        if facts is None:
            return settled(lists, self._dtype)
        return [one if one.is_settled else _settle(one, facts, self._dtype) for one in lists]

    def _arrived(self) -> Iterator[list[int]] | None:
        """Wait for the numbers and return them; None if there are none, or they were returned before."""
        with self._lock:
            readback, self._readback = self._readback, None
            if readback is None:
                return None
            readback.wait()
            numbers = list(_numbers(readback.contents, self._tensors))
            readback.reuse()
        return iter(numbers)


def payload_sizes(lists: Sequence[EncodedList]) -> list[list[int]]:
    """Return the sizes of the payloads that ``settled`` would return, without writing them.

    Waits for the device once, and again for each tensor of a second pass.
    """
    facts = _read([part for one in lists if not one.is_settled for part in _facts(one, False)])
    return [list(one.sizes) if one.is_settled else _final_sizes(one, facts) for one in lists]


def _final_sizes(encoded: EncodedList, facts: Iterator[list[int]]) -> list[int]:
    sizes, again = next(facts), encoded.second_pass
    if again is None:
        return sizes
    pairs = enumerate(zip(sizes, next(facts), strict=True))
    return [again.encode(k).numel() if needed else size for k, (size, needed) in pairs]


def _facts(encoded: EncodedList, with_ranges: bool) -> Iterator[torch.Tensor]:
    """Yield the tensors that the host must read to settle a list."""
    yield cast("torch.Tensor", encoded.sizes)
    if encoded.second_pass is not None:
        yield encoded.second_pass.needed
    if with_ranges and isinstance(encoded.ranges, torch.Tensor):
        yield encoded.ranges


def _read(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of each tensor, waiting for the device once.

    Bytes are concatenated, not numbers, because casting each tensor would take a launch.
    """
    if len(tensors) == 1:
        yield tensors[0].tolist()
        return
    yield from _numbers(torch.cat([x.view(torch.uint8) for x in tensors]).cpu(), tensors)


def _numbers(joined: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of each tensor from the concatenated bytes on the host."""
    held, end = joined.numpy(), 0
    for x in tensors:
        start, end = end, end + x.nbytes
        yield held[start:end].view(f"i{x.itemsize}").tolist()


def _settle(
    encoded: EncodedList, facts: Iterator[list[int]], dtype: torch.dtype | None
) -> EncodedList:
    sizes = next(facts)
    again = encoded.second_pass
    left = [] if again is None else [k for k, needed in enumerate(next(facts)) if needed]
    ranges = None
    if dtype is not None and isinstance(encoded.ranges, torch.Tensor):
        ranges = ranges_of_keys(next(facts), dtype)
    if again is not None and len(left) == len(sizes):
        # no payload of the first pass is used, so none need be written
        return EncodedList.apart([again.encode(k) for k in left], ranges=ranges)
    buffer, nbytes = encoded.buffer, sum(padded(size) for size in sizes)
    if encoded.unwritten is not None and (buffer is None or nbytes > buffer.numel()):
        buffer = encoded.unwritten.written(nbytes)
    known = EncodedList(sizes, buffer, ranges=ranges)
    if again is None or not left:
        return known
    payloads = known.payloads()
    for k in left:
        payloads[k] = again.encode(k)
    return EncodedList.apart(payloads, ranges=ranges)
