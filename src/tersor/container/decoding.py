"""Decoding of batches on a GPU without the host waiting for their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

import torch

from tersor.codecs.codec import Codec
from tersor.codecs.pipeline import PipelineCodec
from tersor.container.batch import Batch
from tersor.container.calls import ListForm
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import (
    DecodingAgain,
    EncodedList,
    Undecoded,
    all_undecoded,
)
from tersor.kernels.payload import frame_places
from tersor.kernels.payload.frame import frame_offsets
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.runtime.device_cache import on_device

Left: TypeAlias = Sequence[tuple[list[int], Undecoded]]
"""Per codec call, the positions of its payloads, and the work that remains after its fused kernel."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Tensors being decoded on a GPU; their values are undefined until ``check`` succeeds.

    Attributes:
        tensors: the outputs, contiguous.
        status: int32 on the device. The first number is non-zero if the sizes are impossible. One number
            per payload follows, in no particular order, which is 0 if the payload is decoded.
    """

    tensors: list[torch.Tensor]
    status: torch.Tensor
    _left: Left = field(default=(), repr=False)
    _frame: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)

    @classmethod
    def finished(cls, tensors: list[torch.Tensor]) -> Decoding:
        """Wrap tensors that are already decoded and checked."""
        return cls(tensors, torch.zeros(1, dtype=torch.int32, device="cpu"))

    @classmethod
    def begin(
        cls,
        buffer: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
        groups: Sequence[tuple[Codec, list[int]]],
    ) -> Decoding:
        """Start decoding a frame on a GPU into contiguous tensors.

        Payloads without a fused kernel are decoded by ``Decoding.check``.

        Args:
            buffer: uint8, the frame, possibly followed by more bytes.
            sizes: int64 on the device, bytes of each payload; untrusted.
            outs: the tensors to write.
            groups: codecs, and the positions of the payloads that each decodes in one call.
        """
        least = [out.numel() >> MAX_VALUES_PER_BYTE_LOG2 for out in outs]
        buffer = buffer if buffer.data_ptr() % 8 == 0 else buffer.clone()
        sizes = sizes.to(torch.int64).contiguous()
        if len(groups) == 1:
            codec, places = groups[0]
            undecoded = _decode(codec, EncodedList(sizes, buffer, least_nbytes=least), outs)
            return cls(list(outs), undecoded.status, [(places, undecoded)], (buffer, sizes))
        offsets, checked, status = frame_places(sizes, least, buffer.numel())
        left: list[tuple[list[int], Undecoded]] = []
        end = 1
        for codec, places in groups:
            chosen, order = [outs[k] for k in places], on_device(tuple(places), buffer.device)
            own = status[end : end + len(chosen)]
            end += len(chosen)
            frame = EncodedList(checked[order], buffer, offsets=offsets[order], status=own)
            undecoded = _decode(codec, frame, chosen)
            if undecoded.status is not own:
                own.copy_(undecoded.status)
            left.append((places, undecoded))
        return cls(list(outs), status, left, (buffer, checked))

    @property
    def undecoded(self) -> Undecoded | None:
        """The remaining work of the only codec call; None if there were several."""
        return self._left[0][1] if len(self._left) == 1 else None

    def check(self) -> list[torch.Tensor]:
        """Wait, decode the payloads that fused kernels could not, and return the tensors.

        Raises:
            CorruptDataError: the sizes or a payload are malformed.
        """
        states = self.status.tolist()
        if any(states):
            self.finish(states)
        return self.tensors

    def finish(self, states: Sequence[int]) -> None:
        """Decode the remaining payloads, given the numbers of ``status``; raises as ``check`` does."""
        are_impossible, *rest = states
        if are_impossible or self._frame is None:
            raise CorruptDataError("the sizes of a batch are impossible or do not fit its buffer")
        buffer, sizes = self._frame
        numbers = sizes.tolist()
        pairs = zip(frame_offsets(numbers).tolist(), numbers, strict=False)
        payloads = [buffer[start : start + size] for start, size in pairs]
        finish_left(self._left, rest, payloads, self.tensors)


class Repetition(NamedTuple):
    """Decodes a frame like the last one of its form, without inspecting the tensors.

    Attributes:
        batch: the frame.
        form: of the list.
        again: the decoder.
        addresses: of the tensors and of the frame, as arguments of ``again``.
        tensors: returns the output tensors; may be called while they are being decoded.
    """

    batch: Batch
    form: ListForm
    again: DecodingAgain
    addresses: tuple[tuple[int, ...], tuple[int, ...]]
    tensors: Callable[[], list[torch.Tensor]]

    @classmethod
    def of(
        cls, batch: Batch, form: ListForm, out: Sequence[torch.Tensor] | None
    ) -> Repetition | None:
        """Prepare the repetition; None if the form has no previous frame, or this one differs from it."""
        buffer, sizes, new = batch.buffer, batch.sizes, form.new_tensors
        again = None if form.undecoded is None else form.undecoded.again
        if again is None or not form.is_plain:
            return None
        if buffer.data_ptr() % 8 or sizes.dtype != torch.int64 or not sizes.is_contiguous():
            return None
        places = buffer.data_ptr(), sizes.data_ptr(), buffer.numel()
        if out is not None:
            pointers = tuple(map(torch.Tensor.data_ptr, out))
            return cls(batch, form, again, (pointers, places), lambda: list(out))
        if new is None:
            return None
        memory = new.memory()
        addresses = new.pointers(memory), places
        return cls(batch, form, again, addresses, lambda: new.tensors(memory))

    def check(self) -> list[torch.Tensor] | None:
        """Decode, wait and return the tensors; None, without any effect, if that is not possible.

        Raises:
            CorruptDataError: the sizes or a payload are malformed.
        """
        found = self.again.wait(*self.addresses, self.tensors)
        if found is None:
            return None
        states, tensors = found
        if any(states):
            self._decoding(tensors, self.batch.sizes).finish(states)
        return tensors

    def begin(self) -> Decoding | None:
        """Start decoding without waiting; None as in ``check``."""
        status = self.again.begin(*self.addresses)
        return None if status is None else self._decoding(self.tensors(), status)

    def _decoding(self, tensors: list[torch.Tensor], status: torch.Tensor) -> Decoding:
        left = [(self.form.groups[0][1], cast("Undecoded", self.form.undecoded))]
        return Decoding(tensors, status, left, (self.batch.buffer, self.batch.sizes))


def finish_left(
    left: Left,
    states: Iterable[int],
    payloads: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
) -> None:
    """Decode the payloads whose status is non-zero; ``states`` are in the order of ``left``."""
    rest = iter(states)
    for places, undecoded in left:
        for k in places:
            if next(rest):
                undecoded.decode(outs[k], payloads[k])


def _decode(codec: Codec, frame: EncodedList, outs: Sequence[torch.Tensor]) -> Undecoded:
    if isinstance(codec, PipelineCodec) and "gpu" in codec.decode_op.targets:
        undecoded = codec.decode(frame, outs)
        if undecoded is not None:
            return undecoded

    def decode_one(out: torch.Tensor, payload: torch.Tensor) -> None:
        codec.decode(EncodedList.apart([payload]), [out])

    # other codecs need the sizes on the host
    return Undecoded(all_undecoded(frame), decode_one)
