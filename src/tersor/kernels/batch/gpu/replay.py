"""Fused calls on lists, replayed as CUDA graphs where their form repeats.

What varies between calls of a form are the addresses of the tensors, the values of their bounds and, when
decoding, the places of the payloads. Results are copied, as the next replay writes to the same memory. The form
has all else that a host decides by.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import address_table, bound_table
from tersor.kernels.runtime.replay import (
    MOST_RESULT_NBYTES,
    REPLAYS,
    Call,
    Replay,
)
from tersor.types import Bound

_ALIGNMENT: Final = 16
"""Bytes; kernels are compiled for addresses that are multiples of it, and for others."""


class Encoding:
    """A call of a fused encoder, which reads addresses and bounds from ``address_table`` and ``bound_table`` alone."""

    __slots__ = ("_call", "_xs")

    def __init__(self, kind: Hashable, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> None:
        """Describe the call.

        Args:
            kind: all that it depends on besides shapes, dtype, addresses and bounds of the tensors.
            xs: contiguous, of one dtype and device.
            bounds: one per tensor.
        """
        self._xs, self._call = xs, None
        device = xs[0].device
        if device.type == "cuda":
            pointers = tuple([x.data_ptr() for x in xs])
            limits = tuple([(bound.value, bound.kind == "relative") for bound in bounds])
            kinds = tuple([is_relative for _, is_relative in limits])
            form = REPLAYS.form_of((kind, *_shape(xs, pointers), kinds), device)
            if form is not None:
                varying = (address_table, pointers, device), (bound_table, limits, device)
                self._call = Call(form, device, varying, FusedList.tensors)

    def replayed(self) -> FusedList | None:
        """Return what a replay of the call encoded; None if the call is to be made."""
        if self._call is None:
            return None
        with REPLAYS.lock, torch.cuda.device_of(self._xs[0]):
            replay: Replay[FusedList] | None = self._call.form.replay
            if replay is None:
                return None
            replay.launch(self._call)
            return replay.result.copied(replay.copies(), self._xs)

    def note(self, made: FusedList, run: Callable[[], FusedList]) -> None:
        """Take note that the call was made by ``run()``, which returned ``made``."""
        if self._call is None:
            return

        def recorded(_: Sequence[torch.Tensor]) -> FusedList:
            # one launch writes small payloads too, so that there is less to copy
            return run().written(MOST_RESULT_NBYTES).without_inputs()

        is_copied = made.can_be_copied(MOST_RESULT_NBYTES)
        with torch.cuda.device_of(self._xs[0]):
            REPLAYS.note(self._call, recorded, is_copied)


class Decoding:
    """A call of a fused decoder, which reads the addresses of its outputs from ``address_table`` alone.

    Attributes:
        places: of the payloads, which must not be freed before they are decoded: ``EncodedList.places``.
    """

    __slots__ = ("_call", "_encoded", "_outs", "places")

    def __init__(self, kind: Hashable, outs: Sequence[torch.Tensor], encoded: EncodedList) -> None:
        """Describe the call.

        Args:
            kind: all that it depends on besides shapes, dtype and addresses.
            outs: contiguous, of one dtype and device.
            encoded: the payloads.
        """
        self._outs, self._encoded, self._call = outs, encoded, None
        self.places = encoded.places()
        device = outs[0].device
        if device.type == "cuda":
            pointers = tuple([out.data_ptr() for out in outs])
            form = REPLAYS.form_of((kind, *_shape(outs, pointers)), device)
            if form is not None:
                varying, rooms = ((address_table, pointers, device),), (len(outs), len(outs))
                self._call = Call(form, device, varying, _as_list, rooms, self._put_places)

    def _put_places(self, tables: Sequence[torch.Tensor]) -> None:
        """Write the addresses of the payloads, and their sizes, to two tables."""
        (buffer, offsets, sizes), num = self.places, len(self._outs)
        _places_kernel[(ceil_div(num, 256),)](
            offsets, sizes, buffer.data_ptr(), num, *tables, LANES=256
        )

    def replayed(self) -> torch.Tensor | None:
        """Return the status of every payload, int32, that a replay decoded; None if the call is to be made."""
        if self._call is None:
            return None
        with REPLAYS.lock, torch.cuda.device_of(self._outs[0]):
            replay: Replay[torch.Tensor] | None = self._call.form.replay
            if replay is None:
                return None
            replay.launch(self._call)
            if self._encoded.status is None:
                return replay.copies()[0]
            return self._encoded.status.copy_(replay.result)

    def note(self, run: Callable[..., torch.Tensor]) -> None:
        """Take note that the call was made.

        ``run(buffer, offsets, sizes)`` makes it with payloads that lie elsewhere.
        """
        if self._call is None:
            return
        # a buffer at address 0: offsets from it are addresses
        origin = torch.empty(0, dtype=torch.uint8, device=self._call.device)
        with torch.cuda.device_of(self._outs[0]):
            REPLAYS.note(self._call, lambda tables: run(origin, *tables))


def _as_list(status: torch.Tensor) -> list[torch.Tensor]:
    return [status]


def _shape(tensors: Sequence[torch.Tensor], pointers: Sequence[int]) -> tuple[Hashable, ...]:
    """Return dtype, shapes and alignments of tensors: what a kernel may be compiled for."""
    offsets = tuple([pointer % _ALIGNMENT for pointer in pointers])
    return tensors[0].dtype, tuple([x.shape for x in tensors]), offsets if any(offsets) else None


@jit_kernel(do_not_specialize=["offsets", "sizes", "base", "num_payloads"])
def _places_kernel(offsets, sizes, base, num_payloads, places, nbytes, LANES: tl.constexpr):
    """Store the addresses and sizes of payloads of which ``offsets`` says where they are from ``base`` on."""
    k = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = k < num_payloads
    tl.store(places + k, tl.load(offsets + k, mask=inside, other=0) + base, mask=inside)
    tl.store(nbytes + k, tl.load(sizes + k, mask=inside, other=0), mask=inside)
