"""Fused calls on lists, replayed as CUDA graphs when their form repeats.

Calls of one form differ only in the addresses of the tensors, the values of their bounds and, when decoding, the
locations of the payloads. The form includes everything else that the host bases decisions on. Results are copied,
because the next replay writes to the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import gcd
from typing import Any, Final, NamedTuple, TypeVar

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.result_copies import ResultCopies
from tersor.kernels.payload.gpu.frame import places_of_frame
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import address_table, bound_table
from tersor.kernels.runtime.replay import MOST_RESULT_NBYTES, REPLAYS, Call, Form, Replay
from tersor.types import Bound

_R = TypeVar("_R")
_ALIGNMENT: Final = 16
"""In bytes; kernels are compiled separately for addresses that are multiples of it and for others."""
_ADDRESS: Final = torch.Tensor.data_ptr


def are_addresses_aligned(pointers: Sequence[int]) -> bool:
    """True if all addresses have the alignment that repeatable calls need."""
    return gcd(_ALIGNMENT, *pointers) == _ALIGNMENT


class Encoding:
    """A call of a fused encoder that reads addresses and bounds only from ``address_table`` and ``bound_table``."""

    __slots__ = ("_device", "_form", "_limits", "_pointers")

    def __init__(self, kind: Hashable, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> None:
        """Describe the call.

        Args:
            kind: everything that it depends on besides shapes, dtype, addresses and bounds of the tensors.
            xs: contiguous tensors of one dtype and device.
            bounds: one per tensor.
        """
        self._device = xs[0].device
        self._form: Form | None = None
        self._pointers: tuple[int, ...] = ()
        if self._device.type == "cuda":
            self._pointers = tuple(map(_ADDRESS, xs))
            limits = tuple([(bound.value, bound.kind == "relative") for bound in bounds])
            self._limits = (bound_table, limits, self._device)
            kinds = tuple([is_relative for _, is_relative in limits])
            self._form = REPLAYS.form_of((kind, *_shape(xs, self._pointers), kinds), self._device)

    @property
    def again(self) -> Callable[[Sequence[torch.Tensor]], FusedList | None] | None:
        """``repeated``, if it may be able to encode other tensors of this form; else None."""
        can_repeat = self._form is not None and are_addresses_aligned(self._pointers)
        return self.repeated if can_repeat else None

    def replayed(self, xs: Sequence[torch.Tensor]) -> FusedList | None:
        """Return the result of replaying the call; None if there is no graph and the call must be made."""
        if self._form is None:
            return None
        with torch.cuda.device_of(xs[0]):
            return self._launched(xs, self._pointers)

    def repeated(self, xs: Sequence[torch.Tensor]) -> FusedList | None:
        """Replay the call for other tensors of the same shapes, dtype, device and bounds.

        Returns None if there is no graph, or none for the alignment of their addresses or the current stream.
        """
        pointers = tuple(map(_ADDRESS, xs))
        return self._launched(xs, pointers) if are_addresses_aligned(pointers) else None

    def _launched(self, xs: Sequence[torch.Tensor], pointers: tuple[int, ...]) -> FusedList | None:
        def copied(replay: Replay[FusedList]) -> FusedList:
            if replay.copies is None:
                made = replay.result
                sizes = made.sizes if isinstance(made.memory, torch.Tensor) else None
                replay.copies = ResultCopies(replay.written, sizes)
            return replay.result.copied(replay.copies.copies(), xs)

        if self._form is None:
            return None
        varying = ((address_table, pointers, self._device), self._limits)
        return REPLAYS.launch(self._form, varying, copied)

    def note(
        self, xs: Sequence[torch.Tensor], made: FusedList, run: Callable[[], FusedList]
    ) -> None:
        """Record that the call was made by ``run()``, which returned ``made``."""
        if self._form is None:
            return

        def recorded() -> FusedList:
            # the graph also writes small payloads, which leaves less to copy
            return run().written(MOST_RESULT_NBYTES).without_inputs()

        varying = (address_table, self._pointers, self._device), self._limits
        call = Call(self._form, self._device, varying, FusedList.tensors)
        with torch.cuda.device_of(xs[0]):
            REPLAYS.note(call, recorded, made.can_be_copied(MOST_RESULT_NBYTES))


class _States(NamedTuple):
    """The int32 status that a decoding graph writes, and its copy on the host, valid once the graph has run."""

    status: torch.Tensor
    on_host: torch.Tensor


class Decoding:
    """A call of a fused decoder that reads the addresses of its outputs only from ``address_table``."""

    __slots__ = ("_decode", "_device", "_encoded", "_form", "_kind", "_num", "_places", "_pointers")

    def __init__(
        self,
        kind: Hashable,
        outs: Sequence[torch.Tensor],
        encoded: EncodedList,
        decode: Callable[..., torch.Tensor],
    ) -> None:
        """Describe the call.

        Args:
            kind: everything that it depends on besides shapes, dtype and addresses.
            outs: contiguous tensors of one dtype and device.
            encoded: the payloads.
            decode: makes the call: ``decode(buffer, offsets, sizes, status=zeros)`` returns the status, in
                ``zeros`` or new memory.
        """
        self._encoded, self._decode = encoded, decode
        self._device, self._num = outs[0].device, len(outs)
        self._form: Form | None = None
        self._pointers: tuple[int, ...] = ()
        if self._device.type == "cuda":
            self._pointers = tuple(map(_ADDRESS, outs))
            self._kind, self._places = payload_places(encoded)
            whole = (kind, self._kind, *_shape(outs, self._pointers))
            self._form = REPLAYS.form_of(whole, self._device)

    @property
    def repeatable(self) -> DecodingForm | None:
        """A repetition of this call for other payloads and tensors of its form; None if it cannot be repeated."""
        if self._form is None or not are_addresses_aligned(self._pointers):
            return None
        return DecodingForm(self._form)

    def made(self) -> torch.Tensor:
        """Decode, by a replay if there is a graph; return the status of every payload, as in ``Undecoded``."""
        given = self._encoded.status
        if self._form is not None:
            status = DecodingForm(self._form).begin(self._pointers, self._places)
            if status is not None:
                return status if given is None else given.copy_(status)
        buffer, offsets, sizes, checked = self._encoded.places()
        status = _decoded(self._decode, (buffer, offsets, sizes), checked, given)
        self._note()
        return status

    def _note(self) -> None:
        """Record that the call was made."""
        if self._form is None:
            return
        form, device, num = self._form, self._device, self._num
        places, kind, least = self._places, self._kind, self._encoded.least_nbytes
        # the buffer is at address 0, so offsets from it are addresses
        origin = torch.empty(0, dtype=torch.uint8, device=device)
        length = num + (least is not None)
        on_host = torch.empty(length, dtype=torch.int32, device="cpu", pin_memory=True)

        def recorded() -> _States:
            table, checked = address_table(places, device), None
            if kind == "frame":
                offsets, sizes, checked = places_of_frame(table, least or ())
            elif kind == "given":
                offsets, sizes = absolute_places(table, num)
            else:
                offsets, sizes = table[:num], table[num:]
            status = _decoded(self._decode, (origin, offsets, sizes), checked, None)
            on_host.copy_(status, non_blocking=True)
            return _States(status, on_host)

        varying = (address_table, self._pointers, device), (address_table, places, device)
        call: Call[_States] = Call(form, device, varying, lambda states: [states.status])
        with torch.cuda.device(device):
            REPLAYS.note(call, recorded)


class DecodingForm(NamedTuple):
    """Decodes payloads into tensors of one form by replaying its graph."""

    form: Form

    def begin(self, pointers: tuple[int, ...], places: tuple[int, ...]) -> torch.Tensor | None:
        """Decode without waiting; return the status.

        Args:
            pointers: addresses to write to.
            places: locations of the payloads, from ``payload_places``.

        Returns:
            The status, or None if nothing was launched; see ``Replays.launch``.
        """
        with torch.cuda.device(self.form.device):
            return self._launched(pointers, places, lambda replay: replay.result.status.clone())

    def wait(
        self, pointers: tuple[int, ...], places: tuple[int, ...], meanwhile: Callable[[], _R]
    ) -> tuple[list[int], _R] | None:
        """Decode, call ``meanwhile`` while the device works, and wait; return the status and the result of ``meanwhile``.

        Arguments, and a result of None, are as in ``begin``.
        """

        def read(replay: Replay[_States]) -> tuple[list[int], _R]:
            made = meanwhile()
            replay.stream.synchronize()
            return replay.result.on_host.tolist(), made

        return self._launched(pointers, places, _itself, read)

    def _launched(
        self,
        pointers: tuple[int, ...],
        places: tuple[int, ...],
        then: Callable[[Replay[_States]], Any],
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        form, replay = self.form, self.form.replay
        if replay is None or not are_addresses_aligned(pointers):
            return None
        device = form.device
        varying = (address_table, pointers, device), (address_table, places, device)
        # no other replay may overwrite the host's copy of the status before it is read
        with replay.lock:
            found = REPLAYS.launch(form, varying, then)
            return found if found is None or read is None else read(found)


def payload_places(encoded: EncodedList) -> tuple[str, tuple[int, ...]]:
    """Return how payloads are located ("frame", "given" or "apart"), and the addresses and sizes for it."""
    if isinstance(encoded.sizes, torch.Tensor):
        buffer = encoded.frame()
        if encoded.offsets is None:
            return "frame", (buffer.data_ptr(), encoded.sizes.data_ptr(), buffer.numel())
        numbers = buffer.data_ptr(), encoded.offsets.data_ptr(), encoded.sizes.data_ptr()
        return "given", numbers
    return "apart", (*map(_ADDRESS, encoded.payloads()), *encoded.sizes)


def _itself(replay: Replay[_States]) -> Replay[_States]:
    return replay


def _decoded(
    decode: Callable[..., torch.Tensor],
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    checked: torch.Tensor | None,
    given: torch.Tensor | None,
) -> torch.Tensor:
    """Decode payloads and return the status.

    ``checked`` is the status of a frame, whose first number is not written; ``given`` is memory for a status
    without frame.
    """
    if checked is None:
        return decode(*places, status=given)
    own = checked[1:]
    status = decode(*places, status=own)
    if status is not own:
        own.copy_(status)
    return checked


def _shape(tensors: Sequence[torch.Tensor], pointers: Sequence[int]) -> tuple[Hashable, ...]:
    """Return dtype, shapes and alignments of tensors, which kernels may be compiled for."""
    offsets = (
        None if are_addresses_aligned(pointers) else tuple([one % _ALIGNMENT for one in pointers])
    )
    return tensors[0].dtype, tuple([x.shape for x in tensors]), offsets


def absolute_places(table: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return addresses and sizes of payloads, given the addresses of their buffer, offsets and sizes."""
    places, nbytes = torch.empty(2, num, dtype=torch.int64, device=table.device).unbind()
    _places_kernel[(ceil_div(num, 256),)](table, num, places, nbytes, LANES=256)
    return places, nbytes


@jit_kernel(do_not_specialize=["num_payloads"])
def _places_kernel(table, num_payloads, places, nbytes, LANES: tl.constexpr):
    """Store addresses and sizes of payloads; the table holds the addresses of their buffer, offsets and sizes."""
    offsets = tl.load(table + 1).to(tl.pointer_type(tl.int64))
    sizes = tl.load(table + 2).to(tl.pointer_type(tl.int64))
    k = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = k < num_payloads
    tl.store(places + k, tl.load(offsets + k, mask=inside, other=0) + tl.load(table), mask=inside)
    tl.store(nbytes + k, tl.load(sizes + k, mask=inside, other=0), mask=inside)
