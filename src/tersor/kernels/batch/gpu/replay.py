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
from tersor.kernels.runtime.replay import REPLAYS, Replay, Varying
from tersor.types import Bound

_ALIGNMENT: Final = 16
"""Bytes; kernels are compiled for addresses that are multiples of it, and for others."""


def encode(
    kind: Hashable,
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    run: Callable[[], FusedList],
) -> FusedList:
    """Return ``run()``, or a replay of it.

    Args:
        kind: all that ``run`` depends on besides shapes, dtype, addresses and bounds of the tensors.
        xs: contiguous, of one dtype and device.
        bounds: one per tensor.
        run: a fused encoder of ``xs``; it takes addresses and bounds from ``address_table`` and
            ``bound_table`` alone.
    """
    device = xs[0].device
    if device.type != "cuda":
        return run()
    pointers = tuple([x.data_ptr() for x in xs])
    limits = tuple([(bound.value, bound.kind == "relative") for bound in bounds])
    kinds = tuple([is_relative for _, is_relative in limits])
    form = REPLAYS.form_of((kind, *_shape(xs, pointers), kinds), device)
    if form is None:
        return run()

    def parts() -> list[np.ndarray[Any, Any]]:
        return [np.array(pointers, np.int64), np.array(limits, np.float64)]

    def tables(held: Sequence[torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
        return {(address_table, pointers, device): held[0], (bound_table, limits, device): held[1]}

    varying = Varying((pointers, limits), parts)
    if form.replay is None:
        return REPLAYS.captured(form, device, varying, tables, lambda _: run(), FusedList.tensors)
    with REPLAYS.lock, torch.cuda.device_of(xs[0]):
        replay: Replay[FusedList] = form.replay
        replay.fill(varying)
        replay.launch()
        return replay.result.copied(replay.copies(), xs)


def decode(
    kind: Hashable,
    outs: Sequence[torch.Tensor],
    encoded: EncodedList,
    run: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Return ``run(buffer, offsets, sizes, status=status)``, or a replay of it: int32, the status of every payload.

    Args:
        kind: all that ``run`` depends on besides shapes, dtype and addresses.
        outs: contiguous, of one dtype and device.
        encoded: the payloads.
        run: a fused decoder to ``outs``; it takes their addresses from ``address_table`` alone. Offsets
            count from the start of the buffer; ``status`` is zeros to write to, or None.
    """
    device = outs[0].device
    if device.type != "cuda":
        return run(*encoded.places(), status=encoded.status)
    pointers = tuple([out.data_ptr() for out in outs])
    form = REPLAYS.form_of((kind, *_shape(outs, pointers)), device)
    if form is None:
        return run(*encoded.places(), status=encoded.status)
    # a buffer at address 0: offsets from it are addresses
    origin = torch.empty(0, dtype=torch.uint8, device=device)

    def tables(held: Sequence[torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
        return {(address_table, pointers, device): held[0]}

    def run_at(held: Sequence[torch.Tensor]) -> torch.Tensor:
        if not held:
            return run(*encoded.places(), status=encoded.status)
        return run(origin, held[1], held[2], status=None)

    def prepare(held: Sequence[torch.Tensor]) -> None:
        if not encoded.is_settled:
            _put_places(encoded, held[1], held[2])

    varying = _places(encoded, pointers)
    if form.replay is None:
        return REPLAYS.captured(
            form, device, varying, tables, run_at, lambda status: [status], prepare
        )
    with REPLAYS.lock, torch.cuda.device_of(outs[0]):
        replay: Replay[torch.Tensor] = form.replay
        replay.fill(varying)
        prepare(replay.parts)
        replay.launch()
        if encoded.status is None:
            return replay.copies()[0]
        return encoded.status.copy_(replay.result)


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
