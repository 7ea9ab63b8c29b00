"""Exact payloads in the smallest of four forms, as a composition: for masks, indices and sparse features.

```
offset size field
     0    1 form    0 verbatim, 1 two values, 2 a small range, 3 few nonzero values
     1    1 width   form 2: bits per field, 0 to 31; else 0
     2    6 zero
     8    8 number  i64; form 2: the smallest word; form 3: the number of nonzero words; else 0
    16      form 0: the tensor's bytes
            form 1: i64[2], both words; then one bit per word: 0 the first, 1 the second
            form 2: one field per word, the word minus the smallest
            form 3: one bit per word, 1 if it is nonzero; padded to 8 bytes; then the nonzero words, in order
```

A word is the bits of a value, as a signed integer of its size; a value of 16 bytes is two words. A payload ends at a multiple of 8 bytes.
On a GPU, encoding and decoding wait, because the host chooses or reads the form.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import ExactPipeline
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.kernels.pack.fields.reference import fields_nbytes
from tersor.raw_bytes import as_bytes, as_padded_bytes, from_struct, padded, read_struct

HEADER: Final = struct.Struct("<BB6xq")
_WHOLE, _TWO, _RANGE, _SPARSE = range(4)
_WORDS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_MAX_WIDTH: Final = 31


def exact_max_nbytes(nbytes: int) -> int:
    """Return the maximum payload size of a tensor of ``nbytes`` bytes."""
    return HEADER.size + padded(nbytes)


def _bits(flags: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = pack_fields(flags.to(torch.int32), 1)
    return packed


def encode_exact_payload(x: torch.Tensor) -> torch.Tensor:
    """Return the smallest payload of one tensor; forms of equal size rank by number."""
    if x.numel() == 0:
        return from_struct(HEADER.pack(_WHOLE, 0, 0), x.device)
    words = as_bytes(x).view(_WORDS[x.dtype.itemsize])
    low, high = (int(limit) for limit in torch.aminmax(words))
    count, width = words.numel(), (high - low).bit_length()
    num_nonzero = int(torch.count_nonzero(words))
    sizes = {_WHOLE: padded(x.nbytes)}
    if low != high and bool(((words == low) | (words == high)).all()):
        sizes[_TWO] = 16 + fields_nbytes(count, 1)
    if width <= _MAX_WIDTH:
        sizes[_RANGE] = fields_nbytes(count, width)
    sizes[_SPARSE] = fields_nbytes(count, 1) + padded(num_nonzero * words.itemsize)
    form = min(sizes, key=lambda one: (sizes[one], one))
    if form == _TWO:
        parts = [torch.tensor([low, high], device=x.device).view(torch.uint8), _bits(words == high)]
    elif form == _RANGE:
        parts = [pack_fields((words.to(torch.int64) - low).to(torch.int32), width)]
    elif form == _SPARSE:
        parts = [_bits(words != 0), as_padded_bytes(words[words != 0])]
    else:
        parts = [as_padded_bytes(words)]
    number = {_RANGE: low, _SPARSE: num_nonzero}.get(form, 0)
    head = HEADER.pack(form, width if form == _RANGE else 0, number)
    return torch.cat([from_struct(head, x.device), *parts])


def encode_exact(xs: Sequence[torch.Tensor], pipeline: ExactPipeline) -> EncodedList:
    """Store each tensor exactly, in the smallest form."""
    del pipeline
    return EncodedList.apart([encode_exact_payload(x) for x in xs], xs)


def _need(is_right: bool) -> None:
    if not is_right:
        raise CorruptDataError("an exact payload is truncated or contradicts itself")


def _take(payload: torch.Tensor, start: int, nbytes: int) -> torch.Tensor:
    """Return ``nbytes`` bytes from ``start`` on.

    Raises:
        CorruptDataError: the payload is shorter.
    """
    _need(payload.numel() >= start + nbytes)
    return payload[start : start + nbytes]


def decode_exact_payload(payload: torch.Tensor, out: torch.Tensor) -> None:
    """Decode what ``encode_exact_payload`` wrote.

    Raises:
        CorruptDataError: the payload is malformed.
    """
    form, width, number = read_struct(HEADER, payload, slice(2, 8))
    words, start = as_bytes(out).view(_WORDS[out.dtype.itemsize]), HEADER.size
    count = words.numel()
    _need(form in (_WHOLE, _TWO, _RANGE, _SPARSE) and (form == _WHOLE or count > 0))
    _need((form == _RANGE or width == 0) and width <= _MAX_WIDTH)
    if form == _WHOLE:
        end = start + padded(out.nbytes)
        words.copy_(_take(payload, start, out.nbytes).view(words.dtype))
    elif form == _TWO:
        end = start + 16 + fields_nbytes(count, 1)
        both = _take(payload, start, 16).view(torch.int64).to(words.dtype)
        flags = unpack_fields(_take(payload, start + 16, fields_nbytes(count, 1)), count, 1)
        words.copy_(torch.where(flags == 1, both[1], both[0]))
    elif form == _RANGE:
        end = start + fields_nbytes(count, width)
        fields = unpack_fields(_take(payload, start, end - start), count, width)
        words.copy_((fields.to(torch.int64) + number).to(words.dtype))
    else:
        start_of_words = start + fields_nbytes(count, 1)
        flags = unpack_fields(_take(payload, start, start_of_words - start), count, 1) == 1
        _need(number == int(flags.sum()))
        end = start_of_words + padded(number * words.itemsize)
        found = _take(payload, start_of_words, number * words.itemsize).view(words.dtype)
        words.zero_()
        words[flags] = found
    _need(payload.numel() >= end and not bool(payload[end:].any()))
    _need(out.dtype != torch.bool or not bool((words & -2).any()))


def decode_exact(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: ExactPipeline
) -> None:
    """Decode what ``encode_exact`` wrote into contiguous tensors."""
    del pipeline
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        decode_exact_payload(payload, out)
