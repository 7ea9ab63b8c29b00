"""Contiguous bit fields in Triton."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.kernels.pack.fields.reference import fields_nbytes
from tersor.kernels.runtime.gpu.launch import jit_kernel

_WORDS: Final = 1024
"""The most words that a program packs, and the number of fields that it unpacks."""


@triton.jit
def pack_words(
    values, count, packed, num_words, width, run, FIELDS: tl.constexpr, WORDS: tl.constexpr
):
    """Pack the ``run``-th ``FIELDS`` values into whole words; ``WORDS`` must be at least their number.

    Each word gathers the fields it holds. ``width`` is at least 1. Values from ``count`` on count as 0.
    """
    first = run * FIELDS
    word = tl.arange(0, WORDS)
    at = run * width * (FIELDS // 32) + word
    inside = (word < width * (FIELDS // 32)) & (at < num_words)
    index = (word * 32) // width
    shift = index * width - word * 32
    fields_mask = (1 << width) - 1
    bits = tl.zeros([WORDS], tl.uint32)
    for _ in range(31 // width + 2):
        known = inside & (shift < 32) & (first + index < count)
        field = (tl.load(values + first + index, mask=known, other=0) & fields_mask).to(tl.uint32)
        left = tl.minimum(tl.maximum(shift, 0), 31).to(tl.uint32)
        right = tl.maximum(-shift, 0).to(tl.uint32)
        bits |= (field << left) >> right
        index += 1
        shift += width
    tl.store(packed + at, bits.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def take_fields(packed, num_words, bit, width, inside):
    """Return the ``width``-bit fields that start at each ``bit`` of the words at ``packed``."""
    at = bit >> 5
    low = tl.load(packed + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
    more = inside & (at + 1 < num_words)
    high = tl.load(packed + at + 1, mask=more, other=0).to(tl.uint32, bitcast=True)
    shift = (bit & 31).to(tl.uint32)
    # shift in two steps, because a shift by 32 is undefined
    joined = (low >> shift) | ((high << 1) << (31 - shift))
    return joined.to(tl.int32, bitcast=True) & ((1 << width) - 1)


@jit_kernel()
def _pack_kernel(
    values, count, packed, num_words, width, FIELDS: tl.constexpr, WORDS: tl.constexpr
):
    """One program packs ``FIELDS`` values."""
    run = tl.program_id(0).to(tl.int64)
    pack_words(values, count, packed, num_words, width, run, FIELDS, WORDS)


@jit_kernel()
def _unpack_kernel(packed, num_words, values, count, width, FIELDS: tl.constexpr):
    """One program unpacks ``FIELDS`` values."""
    field = tl.program_id(0).to(tl.int64) * FIELDS + tl.arange(0, FIELDS)
    inside = field < count
    found = take_fields(packed, num_words, field * width, width, inside)
    tl.store(values + field, found, mask=inside)


def pack_fields(values: torch.Tensor, width: int) -> torch.Tensor:
    """See ``reference.pack_fields``."""
    count = values.numel()
    packed = torch.empty(fields_nbytes(count, width), dtype=torch.uint8, device=values.device)
    if packed.numel() == 0:
        return packed
    words = packed.view(torch.int32)
    blocks = 1 << ((_WORDS // width).bit_length() - 1)
    with torch.cuda.device_of(values):
        _pack_kernel[(ceil_div(count, 32 * blocks),)](
            values, count, words, words.numel(), width, FIELDS=32 * blocks, WORDS=_WORDS
        )
    return packed


def unpack_fields(packed: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """See ``reference.unpack_fields``."""
    nbytes = fields_nbytes(count, width)
    if packed.numel() < nbytes:
        raise CorruptDataError("packed fields are truncated")
    if nbytes == 0:
        return torch.zeros(count, dtype=torch.int32, device=packed.device)
    values = torch.empty(count, dtype=torch.int32, device=packed.device)
    used = packed[:nbytes]
    if (used.storage_offset() | used.data_ptr()) % 4:
        used = used.clone()
    with torch.cuda.device_of(packed):
        _unpack_kernel[(ceil_div(count, _WORDS),)](
            used.view(torch.int32), nbytes // 4, values, count, width, FIELDS=_WORDS
        )
    return values
