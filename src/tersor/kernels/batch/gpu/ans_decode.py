"""Decoding of ``ans`` payloads of a list of tensors in Triton, without waiting.

The coder's symbols become values as they are decoded. Tensors that are not coded are filled afterwards,
and escaped codes and outliers overwrite the values decoded in their positions. Nothing in the bytes is
trusted before it is checked.

Only the device knows which alphabets are wide. A tensor large enough to have a wide one has two
streams, one of each kind, and the payload decides which of them has symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu.ans_plan import ESCAPE_NBYTES, HEAD_NBYTES, large_tensors
from tersor.kernels.batch.gpu.ans_restore import restore
from tersor.kernels.entropy.rans.gpu.decode_streams import Bodies, decode_values, open_bodies
from tersor.kernels.entropy.rans.gpu.table import StaticTable, static_table
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.payload.gpu.open import OUTLIER_LANES, open_payload, put_outliers
from tersor.kernels.payload.gpu.plan import CODED, HEADER_NBYTES
from tersor.kernels.payload.gpu.uncoded import fill_uncoded, programs_per_tensor
from tersor.kernels.quantize.gpu.values import (
    LARGEST_CODE,
    as_compute,
    dequantize_values,
    store_values,
)
from tersor.kernels.runtime.device_cache import cached_on_stream, on_device, to_device_async
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses
from tersor.kernels.runtime.workspace import Layout

_VALUES_PER_STORE: Final = 1024
"""Values that one step of filling a tensor writes."""
_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
_STREAM_FIELDS: Final = ("addresses", "rooms", "coded", "alphabets", "lows", "steps")
"""Facts about a stream before it is decoded, as names in ``_layout``."""
MALFORMED, UNKNOWN = tl.constexpr(1), tl.constexpr(2)
"""States of a payload that was not decoded: malformed, or of a form that this module does not know."""


@triton.jit
def _store_stream(k, inside, address, room, count, alphabet, low, step, streams):
    """Store the facts that the coder needs to decode stream ``k``."""
    addresses, rooms, coded, alphabets, lows, steps = streams
    tl.store(addresses + k, address, mask=inside)
    tl.store(rooms + k, room, mask=inside)
    tl.store(coded + k, count, mask=inside)
    tl.store(alphabets + k, alphabet, mask=inside)
    tl.store(lows + k, low, mask=inside)
    tl.store(steps + k, step, mask=inside)


@jit_kernel(do_not_specialize=["buffer", "num_tensors", "window_low", "window_alphabet"])
def _open_kernel(
    buffer, offsets, sizes, counts, num_tensors, streams, wide_streams, states, status, window_low,
    window_alphabet, TYPE: tl.constexpr, LANES: tl.constexpr, HAS_WIDE: tl.constexpr,
    STATIC: tl.constexpr,
):  # fmt: skip
    """One program opens ``LANES`` payloads and stores the facts about their streams."""
    k = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = k < num_tensors
    size = tl.load(sizes + k, mask=inside, other=0)
    count = tl.load(counts + k, mask=inside, other=0)
    payload = buffer + tl.load(offsets + k, mask=inside, other=0)
    mode, number, body, _, good = open_payload(payload, size, count, TYPE)
    is_coded = good & (mode == CODED)
    head = (payload + HEADER_NBYTES).to(tl.pointer_type(tl.int64))
    whole = is_coded & (body >= HEAD_NBYTES)
    first = tl.load(head, mask=whole, other=0)
    second = tl.load(head + 1, mask=whole, other=0)
    low, alphabet, num_escapes = first.to(tl.int32), (first >> 32) & 0xFFFF, second & 0xFFFFFFFF
    room = body - HEAD_NBYTES - ESCAPE_NBYTES * num_escapes
    # unused bits must be zero
    possible = whole & (((first >> 48) & 0xFFFF) == 0) & (((second >> 32) & 0xFFFFFFFF) == 0)
    possible = possible & (alphabet > 0) & (low.to(tl.int64) + alphabet - 1 <= LARGEST_CODE)
    possible = possible & (alphabet <= _WIDE) & (num_escapes <= count) & (room >= 0)
    if STATIC:
        possible = possible & (low == window_low) & (alphabet == window_alphabet)
    # with a static table all streams are of one kind
    is_narrow = (alphabet <= _NARROW) | STATIC
    address = (head + 2 + num_escapes).to(tl.int64)
    alphabet = alphabet.to(tl.int32)
    narrow_count = tl.where(possible & is_narrow, count, 0)
    _store_stream(k, inside, address, room, narrow_count, alphabet, low, number, streams)
    is_known = is_narrow
    if HAS_WIDE:
        stream = tl.load(wide_streams + k, mask=inside, other=0)
        can_be_wide = inside & (stream > 0)
        is_known = is_known | can_be_wide
        wide_count = tl.where(possible & ~is_narrow, count, 0)
        _store_stream(
            stream, can_be_wide, address, room, wide_count, alphabet, low, number, streams
        )
        tl.store(states + k, 0, mask=inside)
        tl.store(states + stream, 0, mask=can_be_wide)
    state = tl.where(is_known, 0, UNKNOWN)
    state = tl.where(possible, state, tl.where(good & (mode != CODED), 0, MALFORMED))
    tl.store(status + k, state, mask=inside)


@triton.jit
def _put_escapes(head, count, address, step, status, TYPE: tl.constexpr, LANES: tl.constexpr):
    """Overwrite decoded values with this program's share of the escaped codes, as ``TYPE``."""
    num_escapes = tl.load(head + 1) & 0xFFFFFFFF
    positions = (head + 2).to(tl.pointer_type(tl.uint32))
    codes = positions.to(tl.pointer_type(tl.int32)) + num_escapes
    for start in range(tl.program_id(1) * LANES, num_escapes, tl.num_programs(1) * LANES):
        i = start + tl.arange(0, LANES)
        inside = i < num_escapes
        position = tl.load(positions + i, mask=inside, other=0).to(tl.int64)
        previous = tl.load(positions + i - 1, mask=inside & (i > 0), other=0).to(tl.int64)
        wrong = inside & ((position >= count) | ((position <= previous) & (i > 0)))
        if tl.max(wrong.to(tl.int32), axis=0) > 0:
            tl.atomic_or(status, MALFORMED)
        values = dequantize_values(tl.load(codes + i, mask=inside, other=0), step, TYPE, False)
        position = tl.where(inside & ~wrong, position, count)
        store_values(address, position, values, count, TYPE, False, False)


@triton.jit
def _is_whole(k, coded, rooms, nbytes):
    """True if stream ``k`` has no symbols, or the coder read its whole body."""
    return (tl.load(coded + k) == 0) | (tl.load(nbytes + k) == tl.load(rooms + k))


@jit_kernel(do_not_specialize=["buffer"])
def _fill_kernel(
    buffer, offsets, sizes, targets, places, counts, coded, rooms, nbytes, wide_streams, states,
    status, TYPE: tl.constexpr, CODE_TYPE: tl.constexpr, PART: tl.constexpr, HAS_WIDE: tl.constexpr,
):  # fmt: skip
    """Program (k, p) writes every p-th part of tensor k if it is not coded, else of its escapes.

    Escapes are written as ``CODE_TYPE`` over the decoded values or residuals at ``places``. The first program checks
    that the coder read the whole body.
    """
    k = tl.program_id(0)
    count, address = tl.load(counts + k), tl.load(targets + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, _, _, good = open_payload(payload, tl.load(sizes + k), count, TYPE)
    if good & (mode != CODED):
        fill_uncoded(payload, mode, number, count, address, TYPE, PART)
    elif tl.load(status + k) == 0:
        head = (payload + HEADER_NBYTES).to(tl.pointer_type(tl.int64))
        step = as_compute(number, TYPE)
        place = tl.load(places + k)
        _put_escapes(head, count, place, step, status + k, CODE_TYPE, OUTLIER_LANES)
    if tl.program_id(1) == 0:
        is_good = _is_whole(k, coded, rooms, nbytes)
        if HAS_WIDE:
            is_good = is_good & (tl.load(states + k) == 0)
            stream = tl.load(wide_streams + k)
            if stream > 0:
                is_good = is_good & _is_whole(stream, coded, rooms, nbytes)
                is_good = is_good & (tl.load(states + stream) == 0)
        if not is_good:
            tl.atomic_or(status + k, MALFORMED)


@cached_on_stream
def _wide_streams(numels: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return the wide stream of each large tensor, int32, numbered after those of bytes; 0 for the others."""
    streams = [0] * len(numels)
    for stream, k in enumerate(large_tensors(numels), len(numels)):
        streams[k] = stream
    return to_device_async(streams, torch.int32, device)


@lru_cache(maxsize=64)
def _layout(num_streams: int) -> Layout:
    return Layout.of(
        {
            "addresses": (torch.int64, num_streams),
            "rooms": (torch.int64, num_streams),
            "coded": (torch.int64, num_streams),
            "alphabets": (torch.int32, num_streams),
            "lows": (torch.int32, num_streams),
            "steps": (torch.float64, num_streams),
            "states": (torch.int32, num_streams),
        }
    )


class _Residuals(NamedTuple):
    """Memory for the int32 residuals of several tensors, and the address of each tensor's residuals."""

    memory: torch.Tensor
    places: torch.Tensor


def _residuals(numels: tuple[int, ...], device: torch.device) -> _Residuals:
    starts = [0, *accumulate(ceil_div(numel, 4) * 16 for numel in numels)]
    memory = torch.empty(starts[-1], dtype=torch.uint8, device=device)
    return _Residuals(memory, on_device(tuple(starts[:-1]), device) + memory.data_ptr())


def _table(encoder: AnsEncoder, device: torch.device) -> StaticTable | None:
    """Return the static table of an encoder on the device; None if each body has its own table."""
    if encoder.frequencies is None:
        return None
    return static_table(encoder.frequencies, device)


def decode_ans(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    encoder: AnsEncoder,
    status: torch.Tensor | None = None,
    dims: int = 0,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], the address of each payload minus that of ``buffer``. Not checked.
        sizes: int64 [len(outs)], bytes of each payload. Not checked.
        outs: tensors to write.
        encoder: the encoder that wrote the payloads.
        status: receives the result; new memory by default.
        dims: number of predicting axes, 0 for none. Residuals take 4 bytes per value, except in float32.

    Returns:
        int32 [len(outs)]: 0 if the tensor is decoded, else nonzero, and the tensor is undefined. ``UNKNOWN``
        says that a tensor that is not large has a wide alphabet, which the composition decodes; otherwise
        the status is ``MALFORMED`` or both.
    """
    device, dtype, numels = buffer.device, outs[0].dtype, tuple(y.numel() for y in outs)
    window, table = encoder.window(), _table(encoder, device)
    wide = large_tensors(numels) if table is None else []
    counts, targets = on_device(numels, device), addresses(outs, device)
    code_dtype = torch.int32 if dims else dtype
    residuals = _residuals(numels, device) if dims and dtype != torch.float32 else None
    decoded = targets if residuals is None else residuals.places
    # streams of bytes, then of int16; gathered on the device, because a replay sees other addresses
    order = (*range(len(outs)), *wide)
    places = decoded[on_device(order, device)] if wide else decoded
    status = torch.empty(len(outs), dtype=torch.int32, device=device) if status is None else status
    held = _layout(len(order)).carve(device)
    states = held.pop("states") if wide else status
    bodies = Bodies(
        held["addresses"], held["rooms"], held["coded"], held["alphabets"],
        tuple(numels[k] for k in order), 0 if table is not None and table.is_wide else len(outs), table,
    )  # fmt: skip
    wide_streams = _wide_streams(numels, device) if wide else status
    with torch.cuda.device_of(buffer):
        _open_kernel[(ceil_div(len(outs), 128),)](
            buffer, offsets, sizes, counts, len(outs), tuple(held[name] for name in _STREAM_FIELDS),
            wide_streams, states, status, *((0, 0) if window is None else (window.low, window.alphabet)),
            TYPE=TYPES[dtype], LANES=128, HAS_WIDE=bool(wide), STATIC=window is not None,
        )  # fmt: skip
        opened = open_bodies(bodies, states)
        decode_values(opened, places, held["lows"], held["steps"], code_dtype, states)
        _fill_kernel[(len(outs), programs_per_tensor(numels, 4 * _VALUES_PER_STORE, 4))](
            buffer, offsets, sizes, targets, decoded, counts, bodies.counts, bodies.rooms,
            opened.nbytes, wide_streams, states, status, TYPE=TYPES[dtype], CODE_TYPE=TYPES[code_dtype],
            PART=_VALUES_PER_STORE, HAS_WIDE=bool(wide), num_warps=4,
        )  # fmt: skip
        if dims:
            restore(buffer, offsets, sizes, decoded, outs, status, dims)
        put_outliers(buffer, offsets, sizes, targets, counts, dtype, status, max(numels))
    return status
