"""Fused encodings whose launches are recorded and repeated, for lists too large to be replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import torch

from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.replay import are_addresses_aligned
from tersor.kernels.runtime.device_cache import stream_of
from tersor.kernels.runtime.gpu.tiles import address_table
from tersor.kernels.runtime.recording import RECORDINGS, Place, Recording, logged
from tersor.kernels.runtime.sparing import is_sparing

_ENCODING: Final = 0
_WRITING: Final = 1
"""Phases of a recorded encoding. In between the host may wait for the sizes."""


class _Result(NamedTuple):
    """Where a recorded encoding left one of its results: at a place of a memory of ``nbytes`` bytes."""

    nbytes: int
    place: Place

    @classmethod
    def of(cls, x: torch.Tensor) -> _Result:
        """Describe a result of the recorded call."""
        storage = x.untyped_storage()
        return cls(storage.nbytes(), Place(x.data_ptr() - storage.data_ptr(), x.dtype, x.numel()))


class _Recorded(NamedTuple):
    """A recorded encoding: its phases are encoding and writing.

    Attributes:
        recording: takes the table of addresses, the memory of each result, and that of the payloads.
        results: the sizes, ``FusedList.needed`` and ``FusedList.keys``; None for a result that the
            call does not have.
        capacity: most bytes that the payloads can take.
        device: device of the tensors.
    """

    recording: Recording
    results: tuple[_Result | None, ...]
    capacity: int
    device: torch.device

    def encode(self, xs: Sequence[torch.Tensor], table: torch.Tensor) -> FusedList:
        """Encode tensors whose addresses are in ``table``."""
        working, given = self.recording.new_working(self.device), [table]
        found: list[torch.Tensor | None] = []
        for one in self.results:
            if one is None:
                found.append(None)
                continue
            given.append(_new_memory(one.nbytes, self.device))
            found.append(one.place.of_memory(given[-1]))
        self.recording.repeat(_ENCODING, working, given)
        sizes, needed, keys = found
        memory = Unwritten(self.capacity, xs, (working, *given), self.write)
        return FusedList(cast("torch.Tensor", sizes), memory, needed, keys)

    def write(self, state: tuple[torch.Tensor, ...], nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory."""
        working, *given = state
        with torch.cuda.device_of(working):
            out = _new_memory(nbytes, self.device)
            self.recording.repeat(_WRITING, working, [*given, out], {"room": nbytes})
        return out


class RecordedEncoder:
    """Encodes lists of one form, repeating the launches of the second list of each stream.

    The form is shapes, dtype and device of the tensors, and everything that ``encode`` depends on besides them.
    """

    __slots__ = ("_device", "_encode")

    def __init__(
        self, device: torch.device, encode: Callable[[Sequence[torch.Tensor]], FusedList]
    ) -> None:
        """Prepare to repeat a call that was made once.

        Args:
            device: device of the tensors.
            encode: makes the call with nothing but kernels, and leaves the payloads unwritten. It reads its tensors
                through one ``address_table``, also when it writes, and its kernels call the size of the payloads' memory
                ``room``.
        """
        self._device, self._encode = device, encode

    def __call__(self, xs: Sequence[torch.Tensor]) -> FusedList:
        """Encode tensors of the form, which is not checked.

        The call is made as usual where it cannot be repeated: addresses are not aligned as kernels were compiled for,
        memory is limited, recording is turned off, or the stream is being captured, as a graph would read tables that
        belong to the recording.
        """
        with torch.cuda.device_of(xs[0]):
            pointers = tuple([x.data_ptr() for x in xs])
            if (
                not are_addresses_aligned(pointers)
                or not RECORDINGS.is_enabled
                or is_sparing()
                or _is_being_captured(self._device)
            ):
                return self._encode(xs)
            table = address_table(pointers, self._device)
            recorded: _Recorded | None = RECORDINGS.get(self._key())
            return self._record(xs, table) if recorded is None else recorded.encode(xs, table)

    def _key(self) -> tuple[RecordedEncoder, int | None]:
        """Return what identifies the recording of the current stream."""
        return self, _stream(self._device)

    def _record(self, xs: Sequence[torch.Tensor], table: torch.Tensor) -> FusedList:
        """Encode a list; the call is recorded when its payloads are written for the first time."""
        key = self._key()
        with logged() as encoding:
            made = self._encode(xs)
        unwritten = cast("Unwritten", made.memory)
        results = made.sizes, made.needed, made.keys
        given = [_memory_of(x) for x in results if x is not None]

        def write(state: tuple[torch.Tensor, ...] | None, nbytes: int) -> torch.Tensor:
            with torch.cuda.device_of(table):
                # an empty result has no address to record
                if RECORDINGS.get(key) is not None or key != self._key() or not nbytes:
                    return unwritten.write(state, nbytes)
                with logged() as writing:
                    out = unwritten.write(state, nbytes)
                recording = Recording([encoding, writing], [table, *given, out], ["room"])
            places = tuple(None if x is None else _Result.of(x) for x in results)
            recorded = _Recorded(recording, places, unwritten.capacity, self._device)
            RECORDINGS.put(key, recorded, recording.held_nbytes)
            return out

        return made._replace(memory=unwritten._replace(write=write))


def _new_memory(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def _memory_of(x: torch.Tensor) -> torch.Tensor:
    """Return all bytes of the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def _stream(device: torch.device) -> int | None:
    """Return the current stream; None where there are no streams, as in Triton's interpreter."""
    return stream_of(device) if device.type == "cuda" else None


def _is_being_captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
