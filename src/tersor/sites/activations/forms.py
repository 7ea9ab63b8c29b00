"""Forms in which saved values wait for backward; each gives them back flat, in the order of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch

from tersor.codecs import Codec, Packed
from tersor.codecs.lossless import Lossless
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.memory import return_free_memory
from tersor.raw_bytes import empty
from tersor.types import TensorInfo

_VALUES_PER_CALL: Final = 1 << 20
"""Of exact forms. Fields are packed from int32, four times a mask's own bytes; so many at a time bound that memory."""
_FIELDS_PER_GPU_CALL: Final = 1 << 24
"""A GPU is done with a million of them before the host has launched the next call."""
_LOSSLESS: Final = Lossless()
_LEAST_RATIOS: Final = (8.0, 1.25)
"""That an exact form must reach: of floats what a lossy codec reaches of any values; of integers what is worth the time."""

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


def dense_parts(t: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that the memory of ``t`` is in: a sparse one has several, places and values."""
    if t.layout is torch.strided:
        return [t]
    if t.layout is torch.sparse_coo:
        # without asking whether entries of one place were added up
        return [t._indices(), t._values()]  # noqa: SLF001
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), t.values()]
    return []


def nbytes_of(t: torch.Tensor) -> int:
    """Return the bytes that a tensor takes; of a sparse one those of places and values."""
    if t.layout is torch.strided:
        return t.nbytes
    return sum(part.nbytes for part in dense_parts(t))


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
        window: the entries that were encoded together, in that order; gone ones are None when called.
        place: of this one among them. Backward will ask next for those before it.
    """

    codec: Codec
    parts: tuple[torch.Tensor, ...]
    numels: tuple[int, ...]
    dtype: torch.dtype
    stream: Any
    is_checked: bool
    window: Sequence[Callable[[], Any]] = ()
    place: int = 0

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
    """Whole numbers from 0 up, in as few bits as the largest that there can be takes: exact.

    Nobody looks at the values, so that no device is waited for; codec ``lossless`` does.

    Attributes:
        chunks: packed fields, of ``_fields_per_call`` values each but the last.
        numel: of all values.
        width: bits per value.
        dtype: of the values.
    """

    chunks: tuple[torch.Tensor, ...]
    numel: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, values: torch.Tensor, largest: int) -> Fields:
        """Pack flat values from 0 to ``largest``, below 2**31."""
        width = largest.bit_length()
        parts = values.split(_fields_per_call(values))
        chunks = tuple(pack_fields(part.to(torch.int32), width) for part in parts)
        return cls(chunks, values.numel(), width, values.dtype)

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        out = torch.empty(self.numel, dtype=self.dtype, device=self.chunks[0].device)
        for part, chunk in zip(out.split(_fields_per_call(out)), self.chunks, strict=True):
            part.copy_(unpack_fields(chunk, part.numel(), self.width))
        return out


def _fields_per_call(values: torch.Tensor) -> int:
    return _FIELDS_PER_GPU_CALL if values.is_cuda else _VALUES_PER_CALL


def exact_form(values: torch.Tensor) -> Fields | PackedForm | None:
    """Return a smaller exact form of flat values: of masks, integers, and floats of which most are zero or that are only two.

    None where that gains too little (``_LEAST_RATIOS``), and of all but bool on a GPU: looking at values would wait for it.
    """
    if values.dtype == torch.bool:
        return Fields.of(values, 1)
    if values.device.type != "cpu" or not values.numel() or not _LOSSLESS.supports(values.dtype):
        return None
    is_integer = not (values.dtype.is_floating_point or values.dtype.is_complex)
    room_nbytes = int(values.nbytes / _LEAST_RATIOS[is_integer])
    payloads: list[torch.Tensor] = []
    for part in values.split(_VALUES_PER_CALL):
        payloads.append(_LOSSLESS.pack_chunk(part))
        room_nbytes -= payloads[-1].nbytes
        # most tensors are refused by their first parts
        if room_nbytes < 0:
            return None
    return PackedForm(Packed(TensorInfo.of(values), _LOSSLESS, tuple(payloads), _VALUES_PER_CALL))
