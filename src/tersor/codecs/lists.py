"""Lists of tensors that a GPU encodes and decodes in a few launches, without the host waiting.

An engine stands for all codecs that differ in nothing but their bound; equal engines share a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tersor.kernels.kept import uploaded
from tersor.kernels.op import Op, backend_for
from tersor.raw_bytes import padded
from tersor.types import Bound

if TYPE_CHECKING:
    from tersor.codecs.codec import Codec

_encode_flat = Op("encode_flat", {"gpu": "tersor.kernels.flat.gpu:encode_flat"})
_decode_flat = Op("decode_flat", {"gpu": "tersor.kernels.flat.gpu:decode_flat"})
_encode_ans = Op("encode_ans", {"gpu": "tersor.kernels.ans.gpu:encode_ans"})
_decode_ans = Op("decode_ans", {"gpu": "tersor.kernels.ans.gpu:decode_ans"})


@dataclass(frozen=True, slots=True)
class EncodedList:
    """Payloads on the device, back to back, each padded with zeros to a multiple of 8 bytes.

    Attributes:
        buffer: uint8; what follows the last payload is not written.
        sizes: int64 [len], bytes of each payload.
        is_larger: int32 [len], not 0 where the engine stored a tensor exactly because it does not
            know all forms of the codec's payload; None if it knows them all.
    """

    buffer: torch.Tensor
    sizes: torch.Tensor
    is_larger: torch.Tensor | None = None


class ListEngine(ABC):
    """Encodes and decodes lists of contiguous tensors of one dtype and device without waiting."""

    @abstractmethod
    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """Encode each tensor within its bound."""

    @abstractmethod
    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Decode payloads at int64 ``offsets``, multiples of 8, of ``sizes`` bytes, into ``outs``.

        Returns int32 [len(outs)]: 0 where that was done. What is malformed, or a form that the
        engine does not know, gets another number; its tensor is then undefined.
        """


@dataclass(frozen=True, slots=True)
class FlatEngine(ListEngine):
    """What ``flat`` does, in blocks of ``block`` codes."""

    block: int

    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """See ``ListEngine.encode``."""
        return EncodedList(*_encode_flat(xs, bounds, self.block))

    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        status: torch.Tensor = _decode_flat(buffer, offsets, sizes, outs, self.block)
        return status


@dataclass(frozen=True, slots=True)
class AnsEngine(ListEngine):
    """What ``ans`` does with codes that span at most 256."""

    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """See ``ListEngine.encode``."""
        return EncodedList(*_encode_ans(xs, bounds))

    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        status: torch.Tensor = _decode_ans(buffer, offsets, sizes, outs)
        return status


@dataclass(frozen=True, slots=True)
class Group:
    """The places of the tensors that one call of an engine takes, and their bounds."""

    engine: ListEngine
    places: list[int]
    bounds: list[Bound]


def runs_on_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether the kernels for these tensors, all on one device, are those for a GPU."""
    return bool(tensors) and backend_for(tensors[0].device) == "gpu"


def grouped(
    codecs: Sequence[Codec], tensors: Sequence[torch.Tensor]
) -> tuple[list[Group], list[int]]:
    """Return the calls that encode or decode the tensors, and the places no engine takes."""
    groups: dict[tuple[ListEngine, torch.dtype], Group] = {}
    alone = []
    for k, (codec, tensor) in enumerate(zip(codecs, tensors, strict=True)):
        found = codec.list_engine()
        if found is None:
            alone.append(k)
            continue
        engine, bound = found
        group = groups.setdefault((engine, tensor.dtype), Group(engine, [], []))
        group.places.append(k)
        group.bounds.append(bound)
    return list(groups.values()), alone


def encode_group(group: Group, xs: Sequence[torch.Tensor]) -> EncodedList:
    """Encode the tensors of a group, without waiting."""
    return group.engine.encode([xs[k] for k in group.places], group.bounds)


def encode_each(xs: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> list[torch.Tensor]:
    """Encode contiguous tensors on one GPU; return a payload each. Waits once for all engines."""
    groups, alone = grouped(codecs, xs)
    encoded = [encode_group(group, xs) for group in groups]
    facts = [part for one in encoded for part in (one.sizes, one.is_larger) if part is not None]
    numbers = iter(torch.cat(facts).tolist() if facts else ())
    payloads: dict[int, torch.Tensor] = {}
    for group, one in zip(groups, encoded, strict=True):
        sizes = [next(numbers) for _ in group.places]
        if one.is_larger is not None:
            alone += [k for k in group.places if next(numbers)]
        payloads.update(zip(group.places, _cut(one.buffer, sizes), strict=True))
    for k in alone:
        payloads[k] = codecs[k].encode_chunk(xs[k], codecs[k].resolve_bound(xs[k]))
    return [payloads[k] for k in range(len(xs))]


def _cut(buffer: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return the payloads in a buffer; copied if they fill less than half of its memory."""
    used_nbytes = sum(padded(size) for size in sizes)
    used = buffer[:used_nbytes]
    used = used.clone() if 2 * used_nbytes < buffer.numel() else used
    payloads, start = [], 0
    for size in sizes:
        payloads.append(used[start : start + size])
        start += padded(size)
    return payloads


def decode_each(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], codecs: Sequence[Codec]
) -> None:
    """Decode payloads on one GPU into contiguous tensors. Waits once for all engines.

    Args:
        payloads: each at an address that is a multiple of 8.
        outs: what to write.
        codecs: one per payload.

    Raises:
        CorruptDataError: a payload is malformed.
    """
    groups, alone = grouped(codecs, outs)
    found = [_decode_group(group, payloads, outs) for group in groups]
    numbers = iter(torch.cat(found).tolist() if found else ())
    for group in groups:
        alone += [k for k in group.places if next(numbers)]
    for k in alone:
        codecs[k].decode_alone(payloads[k], outs[k])


def _decode_group(
    group: Group, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> torch.Tensor:
    chosen = [payloads[k] for k in group.places]
    origin = chosen[0]
    starts = [payload.data_ptr() - origin.data_ptr() for payload in chosen]
    table = uploaded([starts, [one.numel() for one in chosen]], torch.int64, origin.device)
    return group.engine.decode(origin, table[0], table[1], [outs[k] for k in group.places])
