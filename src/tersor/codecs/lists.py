"""Lists of tensors that a GPU encodes and decodes in a few launches, without the host waiting.

An engine stands for all codecs that differ in nothing but their bound; equal engines share a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from tersor.kernels.runtime.device_cache import uploaded
from tersor.kernels.runtime.op import Op, backend_for
from tersor.raw_bytes import padded
from tersor.types import Bound

if TYPE_CHECKING:
    from tersor.codecs.codec import Codec

_encode_flat = Op("encode_flat", {"gpu": "tersor.kernels.batch.gpu.flat:encode_flat"})
_decode_flat = Op("decode_flat", {"gpu": "tersor.kernels.batch.gpu.flat:decode_flat"})
_encode_ans = Op("encode_ans", {"gpu": "tersor.kernels.batch.gpu.ans:encode_ans"})
_decode_ans = Op("decode_ans", {"gpu": "tersor.kernels.batch.gpu.ans_decode:decode_ans"})


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
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Decode payloads at int64 ``offsets``, multiples of 8, of ``sizes`` bytes, into ``outs``.

        Returns int32 [len(outs)]: 0 where that was done. What is malformed, or a form that the
        engine does not know, gets another number; its tensor is then undefined. An engine may write
        it to ``status``, zeros that the caller has anyway, and return these: one launch less.
        """


class FixedEngine(ListEngine):
    """An engine of a codec whose payloads have sizes that follow from the number of values.

    It knows all forms of them, promises no error, and so is given ``NO_BOUND``.
    """

    @abstractmethod
    def nbytes(self, numel: int) -> int:
        """Return the bytes of the payload of ``numel`` values."""


NO_BOUND: Final = Bound.absolute(0.0)
"""Stands for the bound of a codec that has none."""


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
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        found: torch.Tensor = _decode_flat(buffer, offsets, sizes, outs, self.block, status)
        return found


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
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        del status
        found: torch.Tensor = _decode_ans(buffer, offsets, sizes, outs)
        return found


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
    # most tensors of a list share a codec, which is asked once; held, so that ids stay their own
    known: dict[tuple[int, torch.dtype], tuple[Group, Bound] | None] = {}
    held, alone = list(codecs), []
    for k, (codec, tensor) in enumerate(zip(held, tensors, strict=True)):
        kind = (id(codec), tensor.dtype)
        if kind not in known:
            known[kind] = _joined(groups, codec, tensor.dtype)
        found = known[kind]
        if found is None:
            alone.append(k)
            continue
        group, bound = found
        group.places.append(k)
        group.bounds.append(bound)
    return list(groups.values()), alone


def _joined(
    groups: dict[tuple[ListEngine, torch.dtype], Group], codec: Codec, dtype: torch.dtype
) -> tuple[Group, Bound] | None:
    """Return the group that takes a codec's tensors, new if need be, and their bound."""
    found = codec.list_engine()
    if found is None:
        return None
    engine, bound = found
    return groups.setdefault((engine, dtype), Group(engine, [], [])), bound


def encode_group(group: Group, xs: Sequence[torch.Tensor]) -> EncodedList:
    """Encode the tensors of a group, without waiting."""
    return group.engine.encode([xs[k] for k in group.places], group.bounds)


def encode_each(xs: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> list[torch.Tensor]:
    """Encode contiguous tensors on one GPU; return a payload each.

    Waits once for all engines whose payloads vary in size.
    """
    groups, alone = _worth_a_call(*grouped(codecs, xs))
    encoded = [encode_group(group, xs) for group in groups]
    numbers = _read_sizes(groups, encoded)
    payloads: dict[int, torch.Tensor] = {}
    for group, one in zip(groups, encoded, strict=True):
        if isinstance(group.engine, FixedEngine):
            sizes = [group.engine.nbytes(xs[k].numel()) for k in group.places]
        else:
            sizes = [next(numbers) for _ in group.places]
            if one.is_larger is not None:
                alone += [k for k in group.places if next(numbers)]
        payloads.update(zip(group.places, _cut(one.buffer, sizes), strict=True))
    for k in alone:
        payloads[k] = codecs[k].encode_chunk(xs[k], codecs[k].resolve_bound(xs[k]))
    return [payloads[k] for k in range(len(xs))]


def _worth_a_call(groups: list[Group], alone: list[int]) -> tuple[list[Group], list[int]]:
    """Leave a single tensor of fixed size to its codec, which has no tables to look up."""
    kept = [g for g in groups if len(g.places) > 1 or not isinstance(g.engine, FixedEngine)]
    return kept, alone + [k for g in groups if g not in kept for k in g.places]


def _read_sizes(groups: Sequence[Group], encoded: Sequence[EncodedList]) -> Iterator[int]:
    """Wait for what the host does not know: sizes, and which tensors are stored larger."""
    pairs = zip(groups, encoded, strict=True)
    varying = [one for group, one in pairs if not isinstance(group.engine, FixedEngine)]
    facts = [part for one in varying for part in (one.sizes, one.is_larger) if part is not None]
    return iter(torch.cat(facts).tolist() if facts else ())


def _cut(buffer: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return the payloads in a buffer; copied if they fill less than half of its memory."""
    used_nbytes = sum(padded(size) for size in sizes)
    used = buffer[:used_nbytes]
    used = used.clone() if 2 * used_nbytes < buffer.numel() else used
    # one call for all views: slices, one by one, took half of what the host does after its wait
    parts = [part for size in sizes for part in (size, padded(size) - size)]
    return list(used.split_with_sizes(parts)[::2])


def decode_each(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], codecs: Sequence[Codec]
) -> None:
    """Decode payloads on one GPU into contiguous tensors.

    Waits once for all engines whose payloads vary in size.

    Args:
        payloads: each at an address that is a multiple of 8.
        outs: what to write.
        codecs: one per payload.

    Raises:
        CorruptDataError: a payload is malformed.
    """
    groups, alone = _worth_a_call(*grouped(codecs, outs))
    unknown = []
    for group in groups:
        status = _decode_group(group, payloads, outs)
        if isinstance(group.engine, FixedEngine):
            expected = {k: group.engine.nbytes(outs[k].numel()) for k in group.places}
            alone += [k for k in group.places if payloads[k].numel() != expected[k]]
        else:
            unknown.append((group.places, status))
    states = iter(torch.cat([status for _, status in unknown]).tolist() if unknown else ())
    alone += [k for places, _ in unknown for k in places if next(states)]
    for k in alone:
        codecs[k].decode_alone(payloads[k], outs[k])


def _decode_group(
    group: Group, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> torch.Tensor:
    chosen = [payloads[k] for k in group.places]
    # not simply the first: an empty payload has no address
    origin = max(chosen, key=torch.Tensor.numel)
    starts = [payload.data_ptr() - origin.data_ptr() for payload in chosen]
    table = uploaded([starts, [one.numel() for one in chosen]], torch.int64, origin.device)
    return group.engine.decode(origin, table[0], table[1], [outs[k] for k in group.places])
