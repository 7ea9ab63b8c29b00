"""Fused encodings whose launches are recorded and repeated, for lists too large to be replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import torch

from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.replay import are_aligned
from tersor.kernels.runtime.device_cache import stream_of
from tersor.kernels.runtime.gpu.tiles import address_table
from tersor.kernels.runtime.recording import Recording, logged

_ENCODING: Final = 0
_WRITING: Final = 1
"""Phases of a recorded encoding. In between the host may wait for the sizes."""


class _Recorded(NamedTuple):
    """A recorded encoding: its phases are encoding and writing.

    Attributes:
        recording: takes the table of addresses, the sizes, and the memory of the payloads.
        capacity: most bytes that the payloads can take.
        device: device of the tensors.
    """

    recording: Recording
    capacity: int
    device: torch.device

    def encode(self, xs: Sequence[torch.Tensor], table: torch.Tensor) -> FusedList:
        """Encode tensors whose addresses are in ``table``."""
        sizes = torch.empty(len(xs), dtype=torch.int64, device=self.device)
        working = self.recording.new_working(self.device)
        self.recording.repeat(_ENCODING, working, [table, sizes])
        state = working, table, sizes
        return FusedList(sizes, Unwritten(self.capacity, xs, state, self.write))

    def write(self, state: tuple[torch.Tensor, ...], nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory."""
        working, *given = state
        with torch.cuda.device_of(working):
            out = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            self.recording.repeat(_WRITING, working, [*given, out], {"room": nbytes})
        return out


class Repetition:
    """Encodes lists of one form as the first of them was encoded.

    The second list is encoded and recorded; from the third on, the recorded launches are repeated. The form is shapes,
    dtype and device of the tensors, and everything that ``encode`` depends on besides them.
    """

    __slots__ = ("_device", "_encode", "_recorded", "_stream")

    def __init__(
        self, first: torch.Tensor, encode: Callable[[Sequence[torch.Tensor]], FusedList]
    ) -> None:
        """Prepare to repeat a call.

        Args:
            first: the first tensor of the list that was encoded.
            encode: makes the call with nothing but kernels, and leaves the payloads unwritten; reads its tensors
                through ``address_table`` only. Kernels that write call the size of the payloads' memory ``room``.
        """
        self._device, self._encode = first.device, encode
        self._stream = _stream(first.device)
        self._recorded: _Recorded | None = None

    def __call__(self, xs: Sequence[torch.Tensor]) -> FusedList | None:
        """Encode other tensors of the form, whose form is not checked.

        Returns:
            The payloads; None if addresses are not aligned as kernels were compiled for, or another stream or device is
            current, or the stream is being captured: a graph would read tables that belong to this object.
        """
        pointers = tuple([x.data_ptr() for x in xs])
        if not are_aligned(pointers) or _stream(self._device) != self._stream:
            return None
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device_of(xs[0]):
            table = address_table(pointers, self._device)
            if self._recorded is None:
                return self._record(xs, table)
            return self._recorded.encode(xs, table)

    def _record(self, xs: Sequence[torch.Tensor], table: torch.Tensor) -> FusedList:
        """Encode a list; once its payloads are written, the call is recorded."""
        with logged() as encoding:
            made = self._encode(xs)
        unwritten = cast("Unwritten", made.memory)

        def write(state: tuple[torch.Tensor, ...] | None, nbytes: int) -> torch.Tensor:
            with logged() as writing:
                out = unwritten.write(state, nbytes)
            recording = Recording([encoding, writing], [table, made.sizes, out], ["room"])
            self._recorded = _Recorded(recording, unwritten.capacity, self._device)
            return out

        return made._replace(memory=unwritten._replace(write=write))


def _stream(device: torch.device) -> int | None:
    """Return the current stream; None where there are no streams, as in Triton's interpreter."""
    return stream_of(device) if device.type == "cuda" else None
