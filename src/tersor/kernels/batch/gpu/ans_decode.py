"""Decoding of the payloads of ``ans`` of a list of tensors in Triton, without a wait.

The coder's symbols become values as they are decoded; tensors that are not coded are filled after
that. What the bytes say is checked before it is relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu.ans_plan import HEAD_NBYTES
from tersor.kernels.entropy.rans.gpu.decode_streams import Bodies, decode_values, open_bodies
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.payload.gpu.open import copy_values, open_payload, put_outliers
from tersor.kernels.payload.gpu.plan import CODED, CONSTANT, EXACT, HEADER_NBYTES
from tersor.kernels.payload.gpu.uncoded import programs_per_tensor
from tersor.kernels.quantize.gpu.values import LARGEST_CODE, as_compute, store_values
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses

_VALUES_PER_STORE: Final = 1024
"""Values that one step of filling a tensor writes."""
_NARROW = tl.constexpr(NARROW)
MALFORMED, UNKNOWN = tl.constexpr(1), tl.constexpr(2)
"""States of a payload that was not decoded: wrong, or of a form that this module does not know."""


@jit_kernel(do_not_specialize=["buffer", "num_tensors"])
def _open_kernel(
    buffer, offsets, sizes, counts, num_tensors, bodies, rooms, coded, alphabets, lows, steps,
    status, TYPE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program opens ``LANES`` payloads and says what the coder is to decode."""
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
    low, alphabet = first.to(tl.int32), (first >> 32) & 0xFFFF
    # what lies between and behind the numbers must be zero
    possible = whole & (((first >> 48) & 0xFFFF) == 0) & (((second >> 32) & 0xFFFFFFFF) == 0)
    possible = possible & (alphabet > 0) & (low.to(tl.int64) + alphabet - 1 <= LARGEST_CODE)
    is_known = (alphabet <= _NARROW) & ((second & 0xFFFFFFFF) == 0)
    state = tl.where(is_known, 0, UNKNOWN)
    state = tl.where(possible, state, tl.where(good & (mode != CODED), 0, MALFORMED))
    tl.store(bodies + k, (head + 2).to(tl.int64), mask=inside)
    tl.store(rooms + k, body - HEAD_NBYTES, mask=inside)
    tl.store(coded + k, tl.where(possible & is_known, count, 0), mask=inside)
    tl.store(alphabets + k, alphabet.to(tl.int32), mask=inside)
    tl.store(lows + k, low, mask=inside)
    tl.store(steps + k, number, mask=inside)
    tl.store(status + k, state, mask=inside)


@jit_kernel(do_not_specialize=["buffer"])
def _fill_kernel(
    buffer, offsets, sizes, targets, counts, coded, rooms, nbytes, status, TYPE: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """Program (k, p) writes every p-th part of tensor k if it is not coded.

    The first checks that the coder read all of its body.
    """
    k = tl.program_id(0)
    count, address = tl.load(counts + k), tl.load(targets + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, _, _, good = open_payload(payload, tl.load(sizes + k), count, TYPE)
    begin, stride = tl.program_id(1).to(tl.int64) * PART, tl.num_programs(1) * PART
    if good & (mode == CONSTANT):
        for start in range(begin, count, stride):
            values = as_compute(tl.zeros([PART], dtype=tl.float64) + number, TYPE)
            position = start + tl.arange(0, PART)
            store_values(address, position, values, count, TYPE, False, False)
    elif good & (mode == EXACT):
        body = (payload + HEADER_NBYTES).to(tl.int64)
        for start in range(begin, count, stride):
            copy_values(body, address, start, tl.minimum(start + PART, count), TYPE)
    is_whole = (tl.load(coded + k) == 0) | (tl.load(nbytes + k) == tl.load(rooms + k))
    if (tl.program_id(1) == 0) & (is_whole == 0):
        tl.atomic_or(status + k, MALFORMED)


def decode_ans(
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    encoder: AnsEncoder,
    status: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, without waiting.

    Args:
        buffer: uint8 with all payloads, each at an address that is a multiple of 8.
        offsets: int64 [len(outs)], where each starts, counted from the start of the buffer; for one
            that lies elsewhere, the difference of their addresses. Trusted.
        sizes: int64 [len(outs)], bytes of each. Trusted.
        outs: what to write.
        encoder: what wrote them, without a static table.
        status: what to write the result to; new memory by default.

    Returns:
        int32 [len(outs)]: 0, or not 0 where the tensor is undefined: ``UNKNOWN`` if the payload has
        a wide alphabet or escapes, which others decode, else ``MALFORMED`` or both.
    """
    del encoder
    device, dtype = buffer.device, outs[0].dtype
    numels = tuple(y.numel() for y in outs)
    counts = on_device(numels, device)
    targets = addresses(outs, device)
    if status is None:
        status = torch.empty(len(outs), dtype=torch.int32, device=device)
    alphabets, lows = torch.empty_like(status), torch.empty_like(status)
    steps = torch.empty(len(outs), dtype=torch.float64, device=device)
    starts, rooms, coded = (torch.empty_like(counts) for _ in range(3))
    bodies = Bodies(starts, rooms, coded, alphabets, numels, len(outs))
    with torch.cuda.device_of(buffer):
        _open_kernel[(ceil_div(len(outs), 128),)](
            buffer, offsets, sizes, counts, len(outs), starts, rooms, coded, alphabets, lows,
            steps, status, TYPE=TYPES[dtype], LANES=128,
        )  # fmt: skip
        opened = open_bodies(bodies, status)
        decode_values(opened, targets, lows, steps, dtype, status)
        _fill_kernel[(len(outs), programs_per_tensor(numels, 4 * _VALUES_PER_STORE, 4))](
            buffer, offsets, sizes, targets, counts, coded, rooms, opened.nbytes, status,
            TYPE=TYPES[dtype], PART=_VALUES_PER_STORE, num_warps=4,
        )  # fmt: skip
        put_outliers(buffer, offsets, sizes, targets, counts, dtype, status, max(numels))
    return status
