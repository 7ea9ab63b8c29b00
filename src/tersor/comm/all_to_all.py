"""Chunks of rows between ranks: encoded, sizes first, then one collective for all payloads.

What travels ahead of the payload, int64 per chunk: its bytes, its rows, and the number of its format.
None of it does where every rank can tell these, as it can for gradients that a codec of fixed size encodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.distributed as dist

from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import Codec, check_payload_size, check_written
from tersor.comm.counters import Stopwatch, Volume
from tersor.comm.group import InFlight, RankGroup, Turn
from tersor.container import Batch, decode_batch, encode_batch
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.payload.frame import frame_offsets
from tersor.kernels.runtime.device_cache import on_device
from tersor.types import Bound, TensorInfo

_NUM_FIELDS: Final = 3
_MAX_NBYTES: Final = 2**31 - 1
"""torch counts the elements of an all-to-all in 32 bits."""
_ANY_BOUND: Final = Bound.absolute(1.0)


def format_of(codec: Codec) -> Codec:
    """Return what a decoder must know of a codec: all but its bound."""
    return replace(codec, bound=_ANY_BOUND) if isinstance(codec, BoundedCodec) else codec


class AllToAll:
    """Moves lists of chunks between all ranks of a group of its own.

    Every rank calls ``start`` in the same order.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        formats: Sequence[Codec],
        dtype: torch.dtype,
        device: torch.device,
        channels: Sequence[str],
    ) -> None:
        """Make a group with the ranks of ``group`` (all of them if None); a collective call.

        Args:
            group: whose ranks take part.
            formats: of every codec that any rank will send with; the same list on all ranks.
            dtype: of all chunks.
            device: of all chunks; a rank that sends none receives there too.
            channels: what ``Turn.channel`` may be; the same list on all ranks.

        Raises:
            ExchangeError: a rank could not connect.
        """
        self.formats = tuple(format_of(codec) for codec in formats)
        self.dtype, self.device = dtype, device
        self._numbers = {codec: number for number, codec in enumerate(self.formats)}
        self.group = RankGroup(group, device, channels)

    def start(
        self,
        outgoing: Sequence[Sequence[torch.Tensor]],
        codecs: Sequence[Sequence[Codec]],
        widths: Sequence[Sequence[int]],
        watch: Stopwatch,
        turn: Turn,
        rows: Sequence[Sequence[int]] | None = None,
        fixed_codec: Codec | None = None,
    ) -> Transfer:
        """Encode chunks and start to send them.

        Args:
            outgoing: per destination, chunks [rows, width].
            codecs: per destination, the codec of each chunk.
            widths: per source, the width of each chunk that will come.
            watch: counts the time of the phases.
            turn: what all ranks must be at.
            rows: per source, the rows of each chunk that will come, where this rank knows them.
            fixed_codec: the codec of all chunks of all ranks, where all of them know it and their ``rows``;
                if it is of fixed size, no sizes travel: the host waits for the turns of the
                ranks, and not for its device.

        Raises:
            ExchangeError: a peer failed, or is at another turn.
            CorruptDataError: a peer announced what cannot be.
            SpecError: too many bytes for one collective, or a codec that is wrong about its sizes.
        """
        chunks = [chunk for peer in outgoing for chunk in peer]
        used = [codec for peer in codecs for codec in peer]
        lengths = [len(peer) for peer in outgoing]
        device = chunks[0].device if chunks else self.device
        with self.group.abort_on_error():
            known = self._known_sizes(chunks, widths, rows, fixed_codec)
            totals = (None, None) if known is None else _totals(*known, lengths)
            comparison = self.group.compare_turns(turn, *totals)
        with self.group.abort_on_error(), watch.phase("encode", device):
            batch = encode_batch(chunks, used).completed()
        if known is None:
            with self.group.abort_on_error(), watch.phase("sizes", device):
                comparison.check()
                sizes, heads = self._exchange_heads(outgoing, used, batch.sizes, widths, device)
                if rows is not None:
                    _check_rows(heads, rows)
        else:
            sizes, heads = known
            with self.group.abort_on_error(), watch.phase("payload", device):
                comparison.check()
                _check_fixed(used, batch.sizes, chunks)
        with self.group.abort_on_error(), watch.phase("payload", device):
            send, receive = _totals(sizes, heads, lengths)
            _check_total(send, receive)
            received = torch.empty(sum(receive), dtype=torch.uint8, device=device)
            # that of no chunks is on the CPU
            payload = batch.buffer[: sum(send)].to(device)
            with self.group.explained("exchange of payloads"):
                operation = self.group.all_to_all(received, payload, receive, send)
        sent = [Volume(x.nbytes, size) for x, size in zip(chunks, sizes, strict=True)]
        return Transfer(self, operation, payload, received, heads, widths, sent, watch)

    def _known_sizes(
        self,
        chunks: Sequence[torch.Tensor],
        widths: Sequence[Sequence[int]],
        rows: Sequence[Sequence[int]] | None,
        codec: Codec | None,
    ) -> tuple[list[int], list[list[ChunkHeader]]] | None:
        """Return what ``_exchange_heads`` would, where no rank has to be asked for it; else None."""
        if codec is None or codec.size_kind != "fixed" or rows is None:
            return None
        number = self._numbers[format_of(codec)]
        heads = [
            [ChunkHeader(codec.max_nbytes(shape, self.dtype), shape[0], number)
             for shape in zip(*peer, strict=True)]
            for peer in zip(rows, widths, strict=True)
        ]  # fmt: skip
        return [codec.max_nbytes(tuple(chunk.shape), self.dtype) for chunk in chunks], heads

    def _exchange_heads(
        self,
        outgoing: Sequence[Sequence[torch.Tensor]],
        codecs: Sequence[Codec],
        sizes: torch.Tensor,
        widths: Sequence[Sequence[int]],
        device: torch.device,
    ) -> tuple[list[int], list[list[ChunkHeader]]]:
        """Return the sizes of what goes out, and the heads of what will come, per source."""
        rows = tuple(chunk.shape[0] for peer in outgoing for chunk in peer)
        formats = tuple(self._numbers[format_of(codec)] for codec in codecs)
        known = [on_device(rows, device), on_device(formats, device)]
        sent = torch.stack([sizes.to(device), *known], 1).view(-1)
        send = [_NUM_FIELDS * len(peer) for peer in outgoing]
        receive = [_NUM_FIELDS * len(peer) for peer in widths]
        came = torch.empty(sum(receive), dtype=torch.int64, device=device)
        with self.group.explained("exchange of sizes"):
            self.group.all_to_all(came, sent, receive, send).wait()
            # the host waits for a device here, and in ``Batch.completed`` where a codec has a second pass
            numbers = torch.cat([sizes.to(device), came]).tolist()
        own, rest = numbers[: len(rows)], iter(numbers[len(rows) :])
        heads = [
            [self._checked(ChunkHeader(next(rest), next(rest), next(rest)), source, width)
             for width in peer]
            for source, peer in enumerate(widths)
        ]  # fmt: skip
        return own, heads

    def _checked(self, head: ChunkHeader, source: int, width: int) -> ChunkHeader:
        """Refuse a head that no sender writes, before anything is allocated for it."""
        possible = 0 <= head.format < len(self.formats) and head.rows >= 0 and head.nbytes >= 0
        if possible and head.rows * width < 2**40:
            most = self.formats[head.format].max_nbytes((head.rows, width), self.dtype)
            possible = head.nbytes <= most
        if not possible:
            raise CorruptDataError(
                f"rank {source} announced an impossible chunk: {head.nbytes} bytes for "
                f"{head.rows} rows in format {head.format}"
            )
        return head


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What is announced of a chunk."""

    nbytes: int
    rows: int
    format: int


@dataclass(slots=True)
class Transfer:
    """Payloads on their way; ``sent`` has the bytes of each chunk that went out."""

    wire: AllToAll
    operation: InFlight
    payload: torch.Tensor
    received: torch.Tensor
    heads: list[list[ChunkHeader]]
    widths: Sequence[Sequence[int]]
    sent: list[Volume]
    watch: Stopwatch

    def wait(self) -> list[list[torch.Tensor]]:
        """Return the decoded chunks of every source.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent bytes that are no payload.
        """
        device = self.received.device
        group = self.wire.group
        with group.guarded("exchange of payloads"), self.watch.phase("payload", device):
            self.operation.wait()
        with group.abort_on_error(), self.watch.phase("decode", device):
            return self._decoded()

    def _decoded(self) -> list[list[torch.Tensor]]:
        payloads, infos, codecs = [], [], []
        start = 0
        for source, (heads, widths) in enumerate(zip(self.heads, self.widths, strict=True)):
            offsets = frame_offsets([head.nbytes for head in heads]).tolist()
            for head, width, offset in zip(heads, widths, offsets, strict=False):
                payload = self.received[start + offset : start + offset + head.nbytes]
                try:
                    check_payload_size(payload, head.rows * width)
                except CorruptDataError as error:
                    raise CorruptDataError(f"rank {source} sent too little: {error}") from error
                payloads.append(payload)
                infos.append(TensorInfo((head.rows, width), self.wire.dtype))
                codecs.append(self.wire.formats[head.format])
            start += offsets[-1]
        chunks = iter(decode_batch(Batch.of(payloads), infos, codecs))
        return [[next(chunks) for _ in heads] for heads in self.heads]


def _check_rows(heads: Sequence[Sequence[ChunkHeader]], rows: Sequence[Sequence[int]]) -> None:
    for source, (peer, wanted) in enumerate(zip(heads, rows, strict=True)):
        for head, expected in zip(peer, wanted, strict=True):
            if head.rows != expected:
                raise CorruptDataError(
                    f"rank {source} announced a chunk of {head.rows} rows, {expected} are expected"
                )


def _check_fixed(
    codecs: Sequence[Codec], sizes: torch.Tensor, chunks: Sequence[torch.Tensor]
) -> None:
    """Refuse what a codec wrote otherwise than it says; on a device the encoder has looked."""
    if sizes.device.type == "cpu":
        for codec, chunk, size in zip(codecs, chunks, sizes.tolist(), strict=True):
            check_written(codec, size, tuple(chunk.shape), chunk.dtype)


def _totals(
    sizes: Sequence[int], heads: Sequence[Sequence[ChunkHeader]], lengths: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the bytes of the frame for each peer, and of that from each.

    Args:
        sizes: of all payloads that go out, peer by peer.
        heads: of what will come, per source.
        lengths: how many payloads go to each peer.
    """
    rest = iter(sizes)
    outgoing = [[next(rest) for _ in range(length)] for length in lengths]
    incoming = [[head.nbytes for head in peer] for peer in heads]
    send, receive = (
        [int(frame_offsets(peer)[-1]) for peer in frames] for frames in (outgoing, incoming)
    )
    return send, receive


def _check_total(*totals: Sequence[int]) -> None:
    most = max(map(sum, totals))
    if most > _MAX_NBYTES:
        raise SpecError(
            f"one exchange can move {_MAX_NBYTES} bytes per rank, not {most}; use smaller batches or "
            "a tighter codec"
        )
