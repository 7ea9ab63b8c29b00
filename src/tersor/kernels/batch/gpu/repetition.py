"""Fused encodings whose launches are recorded and repeated, for lists too large to be replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from tersor.kernels.batch.encoded_list import EncodedList, Unwritten
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.replay import are_aligned
from tersor.kernels.runtime.device_cache import stream_of
from tersor.kernels.runtime.gpu.tiles import address_table
from tersor.kernels.runtime.recording import Recording, logged


class Repetition:
    """Encodes lists of one form as the first of them was encoded.

    The second list is encoded and recorded; from the third on, the recorded launches are repeated. The form is shapes,
    dtype and device of the tensors, and everything that ``encode`` depends on besides them.
    """

    __slots__ = ("_capacity", "_device", "_encode", "_recording", "_stream")

    def __init__(
        self, first: torch.Tensor, encode: Callable[[Sequence[torch.Tensor]], FusedList]
    ) -> None:
        """Prepare to repeat a call.

        Args:
            first: the first tensor of the list that was encoded.
            encode: makes the call with nothing but kernels; reads its tensors through ``address_table`` only.
        """
        self._device, self._encode = first.device, encode
        self._stream = _stream(first.device)
        self._recording: Recording | None = None
        self._capacity = 0

    def __call__(self, xs: Sequence[torch.Tensor]) -> EncodedList | None:
        """Encode other tensors of the form, whose form is not checked.

        Returns:
            The payloads, written; None if addresses are not aligned as kernels were compiled for, or another stream or
            device is current, or the stream is being captured: a graph would read tables that belong to this object.
        """
        pointers = tuple([x.data_ptr() for x in xs])
        if not are_aligned(pointers) or _stream(self._device) != self._stream:
            return None
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device_of(xs[0]):
            table = address_table(pointers, self._device)
            if self._recording is None:
                return self._recorded(xs, table)
            sizes = torch.empty(len(xs), dtype=torch.int64, device=self._device)
            buffer = torch.empty(self._capacity, dtype=torch.uint8, device=self._device)
            self._recording.repeat([table, sizes, buffer])
        return EncodedList(sizes, buffer, again=self)

    def _recorded(self, xs: Sequence[torch.Tensor], table: torch.Tensor) -> EncodedList:
        with logged() as log:
            made = self._encode(xs)
            unwritten = cast("Unwritten", made.memory)
            buffer = unwritten.written(unwritten.capacity)
        self._capacity = unwritten.capacity
        self._recording = Recording(log, [table, made.sizes, buffer])
        return EncodedList(made.sizes, buffer, again=self)


def _stream(device: torch.device) -> int | None:
    """Return the current stream; None where there are no streams, as in Triton's interpreter."""
    return stream_of(device) if device.type == "cuda" else None
