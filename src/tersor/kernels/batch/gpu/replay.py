"""Fused calls on lists, replayed as CUDA graphs where their form repeats.

What varies between calls of a form are the addresses of the tensors, the values of their bounds and, when
decoding, the places of the payloads. Results are copied, as the next replay writes to the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import numpy as np
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
    Form,
    Replay,
    Varying,
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
                self._call = _encoding(form, device, pointers, limits)

    def replayed(self) -> FusedList | None:
        """Return what a replay of the call encoded; None if the call is to be made."""
        if self._call is None or self._call.form.replay is None:
            return None
        with REPLAYS.lock, torch.cuda.device_of(self._xs[0]):
            replay: Replay[FusedList] = self._call.form.replay
            replay.launch(self._call)
            return replay.result.copied(replay.copies(), self._xs)

    def note(self, run: Callable[[], FusedList]) -> None:
        """Take note that the call was made by ``run()``, so that a later one may be replayed."""
        if self._call is not None:
            with torch.cuda.device_of(self._xs[0]):
                # one launch writes small payloads too, so that there is less to copy
                REPLAYS.note(self._call, lambda _: run().written(MOST_RESULT_NBYTES))


def _encoding(
    form: Form, device: torch.device, pointers: tuple[int, ...], limits: tuple[Any, ...]
) -> Call[FusedList]:
    def parts() -> list[np.ndarray[Any, Any]]:
        return [np.array(pointers, np.int64), np.array(limits, np.float64)]

    def tables(held: Sequence[torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
        return {(address_table, pointers, device): held[0], (bound_table, limits, device): held[1]}

    varying = Varying((pointers, limits), parts)
    return Call(form, device, varying, tables, FusedList.tensors)


class Decoding:
    """A call of a fused decoder, which reads the addresses of its outputs from ``address_table`` alone."""

    __slots__ = ("_call", "_encoded", "_outs")

    def __init__(self, kind: Hashable, outs: Sequence[torch.Tensor], encoded: EncodedList) -> None:
        """Describe the call.

        Args:
            kind: all that it depends on besides shapes, dtype and addresses.
            outs: contiguous, of one dtype and device.
            encoded: the payloads.
        """
        self._outs, self._encoded, self._call = outs, encoded, None
        device = outs[0].device
        if device.type == "cuda":
            pointers = tuple([out.data_ptr() for out in outs])
            form = REPLAYS.form_of((kind, *_shape(outs, pointers)), device)
            if form is not None:
                self._call = _decoding(form, device, pointers, encoded)

    def replayed(self) -> torch.Tensor | None:
        """Return the status of every payload, int32, that a replay decoded; None if the call is to be made."""
        if self._call is None or self._call.form.replay is None:
            return None
        with REPLAYS.lock, torch.cuda.device_of(self._outs[0]):
            replay: Replay[torch.Tensor] = self._call.form.replay
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
            REPLAYS.note(self._call, lambda parts: run(origin, parts[1], parts[2]))


def _decoding(
    form: Form, device: torch.device, pointers: tuple[int, ...], encoded: EncodedList
) -> Call[torch.Tensor]:
    def tables(held: Sequence[torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
        return {(address_table, pointers, device): held[0]}

    def prepare(held: Sequence[torch.Tensor]) -> None:
        if not encoded.is_settled:
            _put_places(encoded, held[1], held[2])

    varying = _places(encoded, pointers)
    return Call(form, device, varying, tables, lambda status: [status], prepare)


def _shape(tensors: Sequence[torch.Tensor], pointers: Sequence[int]) -> tuple[Hashable, ...]:
    """Return dtype, shapes and alignments of tensors: what a kernel may be compiled for."""
    offsets = tuple([pointer % _ALIGNMENT for pointer in pointers])
    return tensors[0].dtype, tuple([x.shape for x in tensors]), offsets if any(offsets) else None


def _places(encoded: EncodedList, pointers: tuple[int, ...]) -> Varying:
    """Return what varies when payloads are decoded: where values go, where payloads lie, their sizes.

    Where only the device knows the last two, there is room for them.
    """
    where: tuple[int, ...] | None = None
    if encoded.is_settled:
        where = tuple([payload.data_ptr() for payload in encoded.payloads()])
    sizes = None if where is None else tuple(encoded.sizes)

    def parts() -> list[np.ndarray[Any, Any]]:
        unknown = np.zeros(len(pointers), np.int64)
        return [
            np.array(pointers, np.int64),
            unknown if where is None else np.array(where, np.int64),
            unknown if sizes is None else np.array(sizes, np.int64),
        ]

    return Varying((pointers, where, sizes), parts)


@jit_kernel(do_not_specialize=["base", "num_payloads"])
def _places_kernel(offsets, sizes, base, num_payloads, places, nbytes, LANES: tl.constexpr):
    """Store the addresses and sizes of payloads of which ``offsets`` says where they are from ``base`` on."""
    k = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = k < num_payloads
    tl.store(places + k, tl.load(offsets + k, mask=inside, other=0) + base, mask=inside)
    tl.store(nbytes + k, tl.load(sizes + k, mask=inside, other=0), mask=inside)


def _put_places(encoded: EncodedList, places: torch.Tensor, nbytes: torch.Tensor) -> None:
    buffer, offsets, sizes = encoded.places()
    _places_kernel[(ceil_div(len(encoded), 256),)](
        offsets, sizes, buffer.data_ptr(), len(encoded), places, nbytes, LANES=256
    )
