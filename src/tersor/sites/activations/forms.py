"""Forms in which saved values are stored until backward; each restores them flat, in memory order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch

from tersor.codecs import Codec, Packed
from tersor.codecs.lossless import Lossless
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.kernels.runtime.device_cache import current_stream
from tersor.memory import return_free_memory
from tersor.raw_bytes import empty
from tersor.types import TensorInfo

_VALUES_PER_CALL: Final = 1 << 20
"""Chunk size of exact forms. It bounds the memory of int32 values, four times the size of a mask, that are packed."""
_FIELDS_PER_GPU_CALL: Final = 1 << 24
"""A GPU finishes a million fields before the host has launched the next call."""
_LOSSLESS: Final = Lossless()
_LEAST_RATIOS: Final = (8.0, 1.25)
"""Least ratio of an exact form. For floats (first) it is what a lossy codec reaches anyway; for integers, what is
worth the time."""

RETURN_FROM_NBYTES: Final = 1 << 24
"""Freed main memory is returned to the system before a tensor of this size is decoded and after this many bytes are
encoded. A call takes 2 ms, and memory that the step needs again is slow to get back: at a quarter of this size a step
of ResNet34 took 945 ms instead of 855, one of AlexNet 124 instead of 109, at the same peaks."""


class Form(Protocol):
    """The values of a flat tensor in some stored form."""

    @property
    def nbytes(self) -> int:
        """Memory held by the form."""
        ...

    def restored(self) -> torch.Tensor:
        """Return the values, flat; may be called repeatedly."""
        ...


def dense_parts(t: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that ``t`` consists of, for a sparse one indices and values; none if unknown."""
    if t.layout is torch.strided:
        return [t]
    if t.layout is torch.sparse_coo:
        # the public accessors refuse a tensor that is not coalesced
        return [t._indices(), t._values()]  # noqa: SLF001
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), t.values()]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), t.values()]
    return []


def nbytes_of(t: torch.Tensor) -> int:
    """Return the size of a tensor in bytes; for a sparse one, of its indices and values."""
    if t.layout is torch.strided:
        return t.nbytes
    return sum(part.nbytes for part in dense_parts(t))


class Unchanged(NamedTuple):
    """The values unchanged, in memory that others may share."""

    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return nbytes_of(self.values)

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        return self.values


class NoValues(NamedTuple):
    """No values: backward reads only their number, dtype and device."""

    numel: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return 0

    def restored(self) -> torch.Tensor:
        """Return uninitialised memory."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)


class PackedForm(NamedTuple):
    """Values encoded by ``Codec.pack``."""

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


class WindowPayloads(NamedTuple):
    """Payloads of consecutive parts of one tensor, encoded on a GPU as part of a window.

    Attributes:
        codec: the codec of all parts.
        parts: one payload per part.
        numels: number of values in each part.
        dtype: dtype of the values.
        stream: the stream that encoded them; None where there are no streams.
        is_checked: True if decoding must wait for the device to check the payloads. False if fused kernels wrote
            every payload of the window, because the same kernels can decode them.
        window: weak references to the entries that were encoded together, in order.
        place: index of this entry in ``window``. Backward will probably need those before it next.
    """

    codec: Codec
    parts: tuple[torch.Tensor, ...]
    numels: tuple[int, ...]
    dtype: torch.dtype
    stream: Any
    needs_check: bool
    window: Sequence[Callable[[], Any]] = ()
    place: int = 0

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(part.nbytes for part in self.parts)

    @property
    def decoded_nbytes(self) -> int:
        """Size of the decoded values in bytes."""
        return sum(self.numels) * self.dtype.itemsize

    def cut(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Cut flat values into the parts."""
        # almost all tensors are one part, and a needless ``split`` takes 3 us
        return (values,) if len(self.numels) == 1 else values.split(self.numels)

    def restored(self) -> torch.Tensor:
        """See ``Form``; decodes on the current stream, which waits for the stream that encoded."""
        return restored_together([self])[0]


def restored_together(forms: Sequence[WindowPayloads]) -> list[torch.Tensor]:
    """Decode forms of one window as one list on the current stream; each result has memory of its own."""
    first, device = forms[0], forms[0].parts[0].device
    parts = [part for form in forms for part in form.parts]
    if first.stream is not None:
        current = current_stream(device)
        if current != first.stream:
            current.wait_stream(first.stream)
            for part in parts:
                part.record_stream(current)
    found = [empty((sum(form.numels),), form.dtype, device) for form in forms]
    outs = [out for values, form in zip(found, forms, strict=True) for out in form.cut(values)]
    undecoded = first.codec.decode(EncodedList.apart(parts), outs)
    if any(form.needs_check for form in forms):
        finish_decoding(undecoded, parts, outs)
    return found


class BitFields(NamedTuple):
    """Non-negative integers, stored exactly in bit fields wide enough for a known largest value.

    The values are not inspected, so packing waits for no device; codec ``lossless`` does inspect them.

    Attributes:
        chunks: packed fields, ``values_per_call`` values each except for the last.
        numel: total number of values.
        width: bits per value.
        dtype: dtype of the values.
    """

    chunks: tuple[torch.Tensor, ...]
    numel: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, values: torch.Tensor, largest: int) -> BitFields:
        """Pack flat values from 0 to ``largest``, which is below 2**31."""
        width = largest.bit_length()
        parts = values.split(values_per_call(values))
        chunks = tuple(pack_fields(part.to(torch.int32), width) for part in parts)
        return cls(chunks, values.numel(), width, values.dtype)

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        out = torch.empty(self.numel, dtype=self.dtype, device=self.chunks[0].device)
        for part, chunk in zip(out.split(values_per_call(out)), self.chunks, strict=True):
            part.copy_(unpack_fields(chunk, part.numel(), self.width))
        return out


def values_per_call(values: torch.Tensor) -> int:
    """Return into chunks of how many values to split a tensor whose forms need working memory."""
    return _FIELDS_PER_GPU_CALL if values.is_cuda else _VALUES_PER_CALL


def protect_from_reuse(values: torch.Tensor) -> None:
    """Reuse the memory of a tensor only after the work enqueued on the current stream, whichever stream allocated it.

    Autograd would hold it until backward, so the caller does not wait for other streams before freeing it.
    """
    if values.is_cuda:
        values.record_stream(current_stream(values.device))


def exact_form(values: torch.Tensor) -> BitFields | PackedForm | None:
    """Return a smaller exact form of flat values, or None if it would save too little (``_LEAST_RATIOS``).

    It suits masks, integers, and floats that are mostly zero or have only two values. On a GPU it is None for every
    dtype but bool, because inspecting the values would wait for the device.
    """
    if values.dtype == torch.bool:
        return BitFields.of(values, 1)
    if values.device.type != "cpu" or not values.numel() or not _LOSSLESS.supports(values.dtype):
        return None
    is_integer = not (values.dtype.is_floating_point or values.dtype.is_complex)
    room_nbytes = int(values.nbytes / _LEAST_RATIOS[is_integer])
    payloads: list[torch.Tensor] = []
    for part in values.split(_VALUES_PER_CALL):
        payloads.append(_LOSSLESS.pack_chunk(part))
        room_nbytes -= payloads[-1].nbytes
        # most unsuitable tensors exceed the limit within their first parts
        if room_nbytes < 0:
            return None
    return PackedForm(Packed(TensorInfo.of(values), _LOSSLESS, tuple(payloads), _VALUES_PER_CALL))
