"""Forms in which saved values wait for backward; each gives them back flat, in the order of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch

from tersor.codecs import Codec, Packed
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.memory import return_free_memory
from tersor.raw_bytes import empty

_FIELDS_PER_CALL: Final = 1 << 20
"""Fields are packed from int32, four times a mask's own bytes; so many at a time bound that memory."""


RETURN_FROM_NBYTES: Final = 1 << 22
"""Before so many bytes are decoded, and after so many were encoded, freed main memory is given back; it takes 2 ms."""


class Form(Protocol):
    """Values of a flat tensor, kept in some form."""

    @property
    def nbytes(self) -> int:
        """Memory that the form takes."""
        ...

    def restored(self) -> torch.Tensor:
        """Return the values, flat; may be called any number of times."""
        ...


def nbytes_of(t: torch.Tensor) -> int:
    """Return the bytes of the values of a tensor; of a sparse one those that are there."""
    return t.nbytes if t.layout is torch.strided else t._nnz() * t.itemsize  # noqa: SLF001 - no public way


class Whole(NamedTuple):
    """The values as they are, in memory shared with whoever else uses them."""

    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return nbytes_of(self.values)

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        return self.values


class Blank(NamedTuple):
    """Nothing: of these values backward reads only how many there are and where."""

    numel: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return 0

    def restored(self) -> torch.Tensor:
        """Return memory of arbitrary content."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)


class PackedForm(NamedTuple):
    """What ``Codec.pack`` made of the values."""

    packed: Packed

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(payload.nbytes for payload in self.packed.payloads)

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        if self.packed.info.nbytes >= RETURN_FROM_NBYTES and self.packed.device.type == "cpu":
            return_free_memory()
        return self.packed.codec.unpack(self.packed)


class Payloads(NamedTuple):
    """Payloads of consecutive parts of the values, as one window of a GPU encoded them.

    Attributes:
        codec: of all parts.
        parts: one payload each.
        numels: values of each part.
        dtype: of the values.
        stream: on which they were encoded; None where there are no streams.
        is_checked: False if the fused kernels wrote every payload of the window, so that they also know how to
            decode it, and nobody has to wait for their word.
        before: what was encoded before it in the same window, which backward will ask for next.
    """

    codec: Codec
    parts: tuple[torch.Tensor, ...]
    numels: tuple[int, ...]
    dtype: torch.dtype
    stream: Any
    is_checked: bool
    before: Sequence[Callable[[], Any]] = ()

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(part.nbytes for part in self.parts)

    @property
    def decoded_nbytes(self) -> int:
        """Bytes of the values."""
        return sum(self.numels) * self.dtype.itemsize

    def restored(self) -> torch.Tensor:
        """See ``Form``; on the current stream, which waits for the one that encoded."""
        return restored_together([self])[0]


def restored_together(forms: Sequence[Payloads]) -> list[torch.Tensor]:
    """Return the values of payloads of one window, each in memory of its own, decoded as one list."""
    first, device = forms[0], forms[0].parts[0].device
    parts = [part for form in forms for part in form.parts]
    if first.stream is not None:
        current = torch.cuda.current_stream(device)
        if current != first.stream:
            current.wait_stream(first.stream)
            for part in parts:
                part.record_stream(current)
    found = [empty((sum(form.numels),), form.dtype, device) for form in forms]
    outs = [
        out for values, form in zip(found, forms, strict=True) for out in values.split(form.numels)
    ]
    undecoded = first.codec.decode(EncodedList.apart(parts), outs)
    if any(form.is_checked for form in forms):
        finish_decoding(undecoded, parts, outs)
    return found


class Fields(NamedTuple):
    """Whole numbers in as few bits as their range takes, or two values in one bit each: exact.

    Attributes:
        chunks: packed fields, of ``_FIELDS_PER_CALL`` values each but the last.
        numel: of all values.
        width: bits per value.
        low: what field 0 means.
        high: what field 1 means where there are two values; None where fields are added to ``low``.
        dtype: of the values.
    """

    chunks: tuple[torch.Tensor, ...]
    numel: int
    width: int
    low: Any
    high: Any
    dtype: torch.dtype

    @classmethod
    def of_integers(cls, values: torch.Tensor, low: int, high: int) -> Fields:
        """Pack flat integers from ``low`` to ``high``, at most 2**31 - 1 apart."""
        width = (high - low).bit_length()
        chunks = tuple(
            pack_fields((part - low if low else part).to(torch.int32), width)
            for part in values.split(_FIELDS_PER_CALL)
        )
        return cls(chunks, values.numel(), width, low, None, values.dtype)

    @classmethod
    def of_two(cls, values: torch.Tensor, low: Any, high: Any) -> Fields:
        """Pack flat values that are all ``low`` or ``high``."""
        chunks = tuple(
            pack_fields((part == high).to(torch.int32), 1)
            for part in values.split(_FIELDS_PER_CALL)
        )
        return cls(chunks, values.numel(), 1, low, high, values.dtype)

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        out = torch.empty(self.numel, dtype=self.dtype, device=self.chunks[0].device)
        for part, chunk in zip(out.split(_FIELDS_PER_CALL), self.chunks, strict=True):
            fields = unpack_fields(chunk, part.numel(), self.width)
            if self.high is None:
                part.copy_(fields).add_(self.low)
            else:
                part.fill_(self.low).masked_fill_(fields.bool(), self.high)
        return out


def exact_form(values: torch.Tensor) -> Fields | None:
    """Return a smaller exact form of flat values on the CPU that are integers, or only two values.

    None if there is none. On another device looking at values would wait for it.
    """
    if values.dtype == torch.bool:
        return Fields.of_two(values, False, True)
    if values.device.type != "cpu" or not values.numel():
        return None
    if values.dtype.is_floating_point:
        return _two_valued(values)
    if values.dtype.is_complex:
        return None
    low, high = (int(x) for x in torch.aminmax(values))
    if high - low >= 2**31 or (high - low).bit_length() >= 8 * values.itemsize:
        return None
    return Fields.of_integers(values, low, high)


def _two_valued(values: torch.Tensor) -> Fields | None:
    """Return the form of flat floats that have two values at most, neither of them NaN."""
    # most tensors are refused by their first values
    sample = values[:64]
    low, high = sample.min(), sample.max()
    if not bool(((sample == low) | (sample == high)).all()):
        return None
    low, high = values.min(), values.max()
    for part in values.split(_FIELDS_PER_CALL):
        if not bool(((part == low) | (part == high)).all()):
            return None
    # comparing does not tell the zeros apart
    if bool((values.signbit() & (values == 0)).any()):
        return None
    return Fields.of_two(values, float(low), float(high))
