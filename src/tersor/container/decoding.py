"""Batches that a GPU decodes without the host waiting for their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from tersor.codecs.codec import Codec
from tersor.codecs.pipeline import PipelineCodec
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList, Undecoded
from tersor.kernels.payload import frame_places
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.runtime.device_cache import on_device

Left: TypeAlias = Sequence[tuple[list[int], Undecoded]]
"""What calls of codecs did not wait for, and the places of the payloads of each."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Tensors that a GPU decodes; not to be trusted before ``check``.

    Attributes:
        tensors: what is written, contiguous.
        status: int32 on the device: not 0 if the sizes are impossible, then one number per payload,
            in no particular order, which is 0 if it is decoded.
    """

    tensors: list[torch.Tensor]
    status: torch.Tensor
    _left: Left = field(default=(), repr=False)
    _payloads: Callable[[], list[torch.Tensor]] = field(default=list, repr=False)

    @classmethod
    def finished(cls, tensors: list[torch.Tensor]) -> Decoding:
        """Return what is decoded and checked already."""
        return cls(tensors, torch.zeros(1, dtype=torch.int32, device="cpu"))

    @classmethod
    def begin(
        cls,
        buffer: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
        groups: Sequence[tuple[Codec, list[int]]],
    ) -> Decoding:
        """Start to decode a frame on a GPU into contiguous tensors.

        Payloads for which there is no fused kernel are decoded by ``Decoding.check``.

        Args:
            buffer: uint8, the frame, perhaps with more bytes behind it.
            sizes: int64 on the device, bytes of each payload; not trusted.
            outs: what to write.
            groups: codecs, and the places of the payloads that each decodes in one call.
        """
        least = [out.numel() >> MAX_VALUES_PER_BYTE_LOG2 for out in outs]
        buffer = buffer if buffer.data_ptr() % 8 == 0 else buffer.clone()
        offsets, checked, status = frame_places(sizes, least, buffer.numel())
        left: list[tuple[list[int], Undecoded]] = []
        end = 1
        for codec, places in groups:
            chosen, here = [outs[k] for k in places], (checked, offsets)
            if len(chosen) != len(outs):
                order = on_device(tuple(places), buffer.device)
                here = checked[order], offsets[order]
            own = status[end : end + len(chosen)]
            end += len(chosen)
            frame = EncodedList(here[0], buffer, offsets=here[1], status=own)
            undecoded = _decode(codec, frame, chosen)
            if undecoded.status is not own:
                own.copy_(undecoded.status)
            left.append((places, undecoded))

        def payloads() -> list[torch.Tensor]:
            pairs = zip(offsets.tolist(), checked.tolist(), strict=True)
            return [buffer[start : start + size] for start, size in pairs]

        return cls(list(outs), status, left, payloads)

    def check(self) -> list[torch.Tensor]:
        """Wait, decode the forms that fused kernels do not know, and return the tensors.

        Raises:
            CorruptDataError: the sizes or a payload are malformed.
        """
        are_impossible, *states = self.status.tolist()
        if are_impossible:
            raise CorruptDataError("the sizes of a batch are impossible or do not fit its buffer")
        if any(states):
            finish_left(self._left, states, self._payloads())
        return self.tensors


def finish_left(left: Left, states: Iterable[int], payloads: Sequence[torch.Tensor]) -> None:
    """Decode what fused kernels have left, which the status of each payload says, in that order."""
    rest = iter(states)
    for places, undecoded in left:
        for j, k in enumerate(places):
            if next(rest):
                undecoded.decode(j, payloads[k])


def _decode(codec: Codec, frame: EncodedList, outs: Sequence[torch.Tensor]) -> Undecoded:
    if isinstance(codec, PipelineCodec) and "gpu" in codec.decode_op.targets:
        undecoded = codec.decode(frame, outs)
        if undecoded is not None:
            return undecoded

    def decode_one(k: int, payload: torch.Tensor) -> None:
        codec.decode(EncodedList.apart([payload]), [outs[k]])

    # other codecs must know the sizes
    status = torch.ones(len(outs), dtype=torch.int32, device=outs[0].device)
    return Undecoded(status, decode_one)
