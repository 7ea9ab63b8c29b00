"""Batches on a GPU: encoded and decoded without the host waiting for their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tersor.codecs.codec import Codec, check_written
from tersor.codecs.lists import EncodedList, encode_group, grouped
from tersor.container.frame import frame_offsets, pack_frame
from tersor.errors import CorruptDataError
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.op import Op
from tersor.raw_bytes import padded

_frame_places = Op("frame_places", {"gpu": "tersor.kernels.payload.gpu.frame:frame_places"})
_join_frame = Op("join_frame", {"gpu": "tersor.kernels.payload.gpu.frame:join_frame"})


def _inverse(places: Sequence[int]) -> tuple[int, ...]:
    """Return where each place is found in ``places``."""
    return tuple(sorted(range(len(places)), key=places.__getitem__))


def encode_frame(
    xs: Sequence[torch.Tensor], codecs: Sequence[Codec]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode contiguous tensors on one GPU into a frame of worst-case size.

    Waits for codecs alone that have neither a fixed size nor an engine.

    Returns:
        buffer: uint8, the frame; what follows the last payload is not written.
        sizes: int64 on the device, bytes of each payload.
    """
    groups, alone = grouped(codecs, xs)
    encoded = [encode_group(group, xs) for group in groups]
    if len(groups) == 1 and not alone:
        return encoded[0].buffer, encoded[0].sizes
    if alone:
        encoded.append(_encode_alone([xs[k] for k in alone], [codecs[k] for k in alone]))
    sizes = torch.cat([one.sizes for one in encoded])
    sources = torch.cat([_addresses(one) for one in encoded])
    places = [k for group in groups for k in group.places] + alone
    order = on_device(_inverse(places), sizes.device)
    rooms = [padded(codecs[k].max_nbytes(tuple(x.shape), x.dtype)) for k, x in enumerate(xs)]
    sizes = sizes[order]
    return _join_frame(sources[order], sizes, rooms), sizes


def _encode_alone(xs: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> EncodedList:
    payloads = []
    for x, codec in zip(xs, codecs, strict=True):
        payloads.append(codec.encode_chunk(x, codec.resolve_bound(x)))
        # the frame has room for what the codec says, and those who know its sizes do not ask for them
        check_written(codec, payloads[-1].numel(), tuple(x.shape), x.dtype)
    sizes = on_device(tuple(payload.numel() for payload in payloads), xs[0].device)
    return EncodedList(pack_frame(payloads), sizes)


def _addresses(encoded: EncodedList) -> torch.Tensor:
    return frame_offsets(encoded.sizes)[:-1] + encoded.buffer.data_ptr()


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
    _buffer: torch.Tensor
    _offsets: torch.Tensor
    _sizes: torch.Tensor
    _places: list[int]
    _codecs: list[Codec]

    @classmethod
    def finished(cls, tensors: list[torch.Tensor]) -> Decoding:
        """Return what is decoded and checked already."""
        none = torch.zeros(1, dtype=torch.int32, device="cpu")
        return cls(tensors, none, none, none, none, [], [])

    def check(self) -> list[torch.Tensor]:
        """Wait, decode the forms that engines do not know, and return the tensors.

        Raises:
            CorruptDataError: the sizes or a payload are malformed.
        """
        are_impossible, *states = self.status.tolist()
        if are_impossible:
            raise CorruptDataError("the sizes of a batch are impossible or do not fit its buffer")
        left = [k for k, state in zip(self._places, states, strict=True) if state]
        if left:
            sizes, offsets = self._sizes.tolist(), self._offsets.tolist()
            for k in left:
                payload = self._buffer[offsets[k] : offsets[k] + sizes[k]]
                self._codecs[k].decode_alone(payload, self.tensors[k])
        return self.tensors


def begin_decode(
    buffer: torch.Tensor,
    sizes: torch.Tensor,
    outs: Sequence[torch.Tensor],
    codecs: Sequence[Codec],
) -> Decoding:
    """Start to decode a frame on a GPU into contiguous tensors.

    Payloads of codecs without an engine are decoded by ``Decoding.check``.

    Args:
        buffer: uint8, the frame, perhaps with more bytes behind it.
        sizes: int64 on the device, bytes of each payload; not trusted.
        outs: what to write.
        codecs: one per payload.
    """
    groups, alone = grouped(codecs, outs)
    least = [out.numel() >> MAX_VALUES_PER_BYTE_LOG2 for out in outs]
    buffer = buffer if buffer.data_ptr() % 8 == 0 else buffer.clone()
    offsets, checked, status = _frame_places(sizes, least, buffer.numel())
    end = 1
    for group in groups:
        chosen, here = [outs[k] for k in group.places], (offsets, checked)
        if len(chosen) != len(outs):
            order = on_device(tuple(group.places), buffer.device)
            here = offsets[order], checked[order]
        own = status[end : end + len(chosen)]
        found = group.engine.decode(buffer, *here, chosen, own)
        if found is not own:
            own.copy_(found)
        end += len(chosen)
    if alone:
        status[end:] = 1
    places = [k for group in groups for k in group.places] + alone
    return Decoding(list(outs), status, buffer, offsets, checked, places, list(codecs))
