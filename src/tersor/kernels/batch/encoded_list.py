"""Payloads of a list of tensors: what a batch operation writes, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import torch

from tersor.errors import SpecError
from tersor.kernels.payload import frame_places
from tersor.kernels.payload.frame import pack_frame
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.quantize.grid import Range
from tersor.kernels.quantize.range_keys import ranges_of_keys
from tersor.kernels.runtime.device_cache import to_device_async
from tersor.raw_bytes import padded

_R = TypeVar("_R")
_NO_STATUS: Final = torch.empty(0, dtype=torch.int32, device="cpu")


class SecondPass(NamedTuple):
    """What a fused kernel left to the composed operation.

    Attributes:
        needed: int32 per tensor, on the device: not 0 where the tensor is left.
        encode: returns the payload of tensor ``k``.
    """

    needed: torch.Tensor
    encode: Callable[[int], torch.Tensor]


class Unwritten(NamedTuple):
    """Payloads whose sizes are decided, on the device, and that are not written yet.

    Attributes:
        capacity: bytes that hold them, whatever the tensors are.
        xs: the tensors, which ``write`` reads again.
        state: what is known of them, on the device; None if that cannot be moved.
        write: takes ``state`` and a number of bytes; writes those payloads that fit into new memory of so
            many bytes, without waiting, and returns it.
    """

    capacity: int
    xs: Sequence[torch.Tensor]
    state: tuple[torch.Tensor, ...] | None
    write: Callable[[Any, int], torch.Tensor]

    def written(self, nbytes: int) -> torch.Tensor:
        """Return new memory of ``nbytes`` bytes with the payloads that fit."""
        return self.write(self.state, nbytes)


class Undecoded(NamedTuple):
    """What a decoder on a device did not wait for.

    Attributes:
        status: int32 per tensor, on the device: 0 where it is decoded; else its payload is malformed,
            or of a form that the fused kernel does not know, and the tensor undefined. Of a frame with
            ``EncodedList.least_nbytes`` one number more comes first, which is not 0 if its sizes are impossible.
        decode: decodes a tensor from its payload, or raises ``CorruptDataError``; may wait.
        again: decodes other payloads into tensors of the same form as this list was decoded; None if nothing can.
    """

    status: torch.Tensor
    decode: Callable[[torch.Tensor, torch.Tensor], None]
    again: DecodingAgain | None = None

    def without_status(self) -> Undecoded:
        """Return what decodes further lists, without memory on the device."""
        return self._replace(status=_NO_STATUS)


class DecodingAgain(Protocol):
    """Decodes payloads into tensors of one form, without looking at them.

    ``pointers`` are addresses to write to, ``places`` those of the payloads: of a frame its own, that of its
    sizes, and its bytes; of payloads apart the address of each, then the size of each. None is returned where
    that cannot be done now.
    """

    def begin(self, pointers: tuple[int, ...], places: tuple[int, ...]) -> torch.Tensor | None:
        """Decode without waiting; return the status."""

    def wait(
        self, pointers: tuple[int, ...], places: tuple[int, ...], meanwhile: Callable[[], _R]
    ) -> tuple[list[int], _R] | None:
        """Decode, call ``meanwhile`` while the device works, wait; return the status, and what that returned."""


@dataclass(frozen=True, slots=True)
class EncodedList:
    """Payloads in one buffer, or apart.

    Attributes:
        sizes: bytes of each payload; on the device, int64, where the host does not know them.
        buffer: uint8, the payloads back to back, each padded with zeros to a multiple of 8 bytes;
            what follows the last one is not written. None if they lie apart or are not written.
        parts: the payloads, each its own tensor, where they lie apart.
        offsets: int64 on the device, where each payload starts, in a list that is to be decoded and
            whose sizes the host does not know.
        least_nbytes: the smallest possible size of each payload, in a frame that is to be decoded and of which
            nobody has checked the sizes: its decoder does, and says so in the status.
        ranges: the range of each tensor where encoding found it out; on the device, as the keys of
            ``quantize.range_keys``, if the sizes are there.
        unwritten: what writes the payloads, where a kernel decides their sizes first.
        second_pass: what is stored exactly for now; ``settled`` encodes it.
        device_sizes: the sizes on the device as well, where encoding put them there.
        status: int32 zeros on the device that a decoder may write its status to: one launch less.
        again: encodes other tensors of the same form with the same bounds, without looking at them, as this
            list was encoded; returns None where that cannot be done now.
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
        """Return a list of payloads that are tensors of their own.

        ``tensors`` are what they encode: a payload too small for its tensor is padded with zeros to
        the least size that readers accept.
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
        """True if payloads may not fit their memory, so that some may be missing there."""
        if self.unwritten is None or self.buffer is None:
            return False
        return self.buffer.numel() < self.unwritten.capacity

    def written(self, nbytes: int | None = None) -> EncodedList:
        """Return the list with all payloads that fit into ``nbytes`` bytes written, without waiting.

        By default there is room for every payload. ``settled`` writes again what did not fit.
        """
        if self.unwritten is None or self.buffer is not None:
            return self
        capacity = self.unwritten.capacity
        room = capacity if nbytes is None else min(capacity, nbytes)
        buffer = self.unwritten.written(room)
        # where all fit, nothing is written again, and the tensors need not be held
        return replace(self, buffer=buffer, unwritten=None if room == capacity else self.unwritten)

    def payloads(self) -> list[torch.Tensor]:
        """Return the payloads of a settled list as views; copied if a sixteenth of the memory is not theirs.

        Raises:
            SpecError: only the device knows their sizes.
        """
        if self.parts is not None:
            return list(self.parts)
        if not self.is_settled:
            raise SpecError("the sizes of the payloads are on the device; read them with settled")
        buffer = cast("torch.Tensor", self.buffer)
        nbytes = sum(padded(size) for size in self.sizes)
        used = buffer[:nbytes]
        used = used.clone() if 16 * nbytes < 15 * buffer.numel() else used
        # one call for all views: slices, one by one, took half of what the host does after its wait
        lengths = [part for size in self.sizes for part in (size, padded(size) - size)]
        return list(used.split_with_sizes(lengths)[::2])

    def frame(self) -> torch.Tensor:
        """Return the payloads in one buffer, laid out as ``payload.frame`` says.

        Raises:
            SpecError: they are not written yet.
        """
        if self.parts is not None:
            return pack_frame(self.parts)
        if self.buffer is None:
            raise SpecError("the payloads are not written yet; call written, or settled to wait")
        return self.buffer

    def places(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return where payloads lie: a buffer, on the device their offsets from it and their sizes.

        At last the status of a frame of which nobody has checked the sizes, as ``frame_places`` says.
        """
        if isinstance(self.sizes, torch.Tensor):
            if self.least_nbytes is not None:
                room_nbytes = self.frame().numel()
                offsets, sizes, status = frame_places(self.sizes, self.least_nbytes, room_nbytes)
                return self.frame(), offsets, sizes, status
            return self.frame(), cast("torch.Tensor", self.offsets), self.sizes, None
        payloads = self.payloads()
        # not simply the first: an empty payload has no address
        origin = max(payloads, key=torch.Tensor.numel)
        starts = [payload.data_ptr() - origin.data_ptr() for payload in payloads]
        table = to_device_async([starts, list(self.sizes)], torch.int64, origin.device)
        return origin, table[0], table[1], None


def all_undecoded(encoded: EncodedList) -> torch.Tensor:
    """Return the status, as in ``Undecoded``, of a list in one buffer of which nothing is decoded yet."""
    buffer, _, sizes, checked = encoded.places()
    if checked is None:
        return torch.ones(len(sizes), dtype=torch.int32, device=buffer.device)
    checked[1:] = 1
    return checked


def finish_decoding(
    undecoded: Undecoded | None, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> None:
    """Wait, and decode what a device has left, from the payloads of all its tensors.

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
    """Return lists whose sizes the host knows, all written, with the payloads of the second pass.

    Waits for the device once, however many lists there are, and not at all if none needs it.
    ``dtype``, of the tensors, asks for their ranges too.
    """
    waiting = [one for one in lists if not one.is_settled]
    if not waiting:
        return list(lists)
    facts = _read([part for one in waiting for part in _facts(one, dtype is not None)])
    return [one if one.is_settled else _settle(one, facts, dtype) for one in lists]


class Settling:
    """Sizes on their way from a device, and what ``settled`` makes of them."""

    def __init__(self, lists: Sequence[EncodedList]) -> None:
        """Start to read the sizes; nobody waits."""
        self._lists = lists
        waiting = [one for one in lists if not one.is_settled]
        self._tensors = [part for one in waiting for part in _facts(one, with_ranges=False)]
        self._arrived: torch.cuda.Event | None = None
        if not self._tensors or not self._tensors[0].is_cuda:
            return
        device_bytes = torch.cat([x.view(torch.uint8) for x in self._tensors])
        self._host_bytes = torch.empty(device_bytes.numel(), dtype=torch.uint8, pin_memory=True)
        self._host_bytes.copy_(device_bytes, non_blocking=True)
        self._arrived = torch.cuda.Event()
        # that of the tensors' device, which need not be the current one
        self._arrived.record(torch.cuda.current_stream(self._tensors[0].device))

    @property
    def has_arrived(self) -> bool:
        """True if ``finish`` waits for nothing."""
        return self._arrived is None or self._arrived.query()

    def finish(self) -> list[EncodedList]:
        """Return what ``settled`` does; waits for no work that came after the start."""
        if self._arrived is None:
            return settled(self._lists)
        self._arrived.synchronize()
        facts = _numbers(self._host_bytes, self._tensors)
        return [one if one.is_settled else _settle(one, facts, None) for one in self._lists]


def payload_sizes(lists: Sequence[EncodedList]) -> list[list[int]]:
    """Return the bytes of each payload that ``settled`` would return, without writing payloads.

    Waits for the device once, and for each tensor of a second pass.
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
    """Yield what the host must read of a list."""
    yield cast("torch.Tensor", encoded.sizes)
    if encoded.second_pass is not None:
        yield encoded.second_pass.needed
    if with_ranges and isinstance(encoded.ranges, torch.Tensor):
        yield encoded.ranges


def _read(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of each tensor; waits for the device once.

    Bytes are joined, not numbers: a cast of each tensor would be a launch of its own.
    """
    if len(tensors) == 1:
        yield tensors[0].tolist()
        return
    yield from _numbers(torch.cat([x.view(torch.uint8) for x in tensors]).cpu(), tensors)


def _numbers(joined: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the numbers of each tensor from the bytes of all, on the host."""
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
        # what was decided of these tensors need not be written
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
