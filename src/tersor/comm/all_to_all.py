"""Exchange of encoded chunks of rows: first their headers, then one collective for all payloads.

The header of a chunk is three int64: payload bytes, rows and format number. Headers are not sent where
every rank can compute them, as for gradients under a codec of fixed size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.distributed as dist

from tersor.codecs.arguments import check_payload_size
from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import Codec, check_written
from tersor.comm.counters import Stopwatch, Volume
from tersor.comm.group import InFlight, RankGroup, Turn
from tersor.container import Batch, decode_batch, encode_batch
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.payload.frame import frame_offsets
from tersor.kernels.runtime.device_cache import on_device
from tersor.types import Bound, TensorInfo

_NUM_FIELDS: Final = 3
_MAX_NBYTES: Final = 2**31 - 1
"""Limit per collective: torch counts the elements of an all-to-all in 32 bits."""
_ANY_BOUND: Final = Bound.absolute(1.0)


def format_of(codec: Codec) -> Codec:
    """Return the part of a codec that a decoder needs: everything but its bound."""
    return replace(codec, bound=_ANY_BOUND) if isinstance(codec, BoundedCodec) else codec


class AllToAll:
    """Exchanges lists of chunks between all ranks of a process group that it creates and owns.

    Every rank must make the same calls of ``start`` in the same order.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        formats: Sequence[Codec],
        dtype: torch.dtype,
        device: torch.device,
        channels: Sequence[str],
    ) -> None:
        """Create a new group with the ranks of ``group``; a collective call.

        Args:
            group: the ranks that take part; all ranks if None.
            formats: every codec that any rank will encode with; the same list on all ranks.
            dtype: of all chunks.
            device: of all chunks, including those received by a rank that sends none.
            channels: possible values of ``Turn.channel``; the same list on all ranks.

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
        """Encode chunks and start sending them.

        Args:
            outgoing: per destination, chunks [rows, width].
            codecs: per destination, the codec of each chunk.
            widths: per source, the width of each incoming chunk.
            watch: accumulates the time of the phases.
            turn: the turn that all ranks must be at.
            rows: per source, the rows of each incoming chunk, if this rank knows them.
            fixed_codec: the codec of all chunks of all ranks, if every rank knows it and ``rows``. If its
                size is fixed, no headers are sent, and the host waits only for the turns of the other
                ranks, not for its device.

        Raises:
            ExchangeError: a peer failed, or is at another turn.
            CorruptDataError: a peer announced an impossible chunk.
            SpecError: too many bytes for one collective, or a codec misstates its sizes.
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
                sizes, headers = self._exchange_headers(outgoing, used, batch.sizes, widths, device)
                if rows is not None:
                    _check_rows(headers, rows)
        else:
            sizes, headers = known
            with self.group.abort_on_error(), watch.phase("payload", device):
                comparison.check()
                _check_fixed(used, batch.sizes, chunks)
        with self.group.abort_on_error(), watch.phase("payload", device):
            send, receive = _totals(sizes, headers, lengths)
            _check_total(send, receive)
            received = torch.empty(sum(receive), dtype=torch.uint8, device=device)
            # the buffer of an empty batch is on the CPU
            payload = batch.buffer[: sum(send)].to(device)
            with self.group.explained("exchange of payloads"):
                operation = self.group.all_to_all(received, payload, receive, send)
        sent = [Volume(x.nbytes, size) for x, size in zip(chunks, sizes, strict=True)]
        return Transfer(self, operation, payload, received, headers, widths, sent, watch)

    def _known_sizes(
        self,
        chunks: Sequence[torch.Tensor],
        widths: Sequence[Sequence[int]],
        rows: Sequence[Sequence[int]] | None,
        codec: Codec | None,
    ) -> tuple[list[int], list[list[ChunkHeader]]] | None:
        """Return what ``_exchange_headers`` would, if it can be computed locally; else None."""
        if codec is None or codec.size_kind != "fixed" or rows is None:
            return None
        number = self._numbers[format_of(codec)]
        headers = [
            [ChunkHeader(codec.max_nbytes(shape, self.dtype), shape[0], number)
             for shape in zip(*peer, strict=True)]
            for peer in zip(rows, widths, strict=True)
        ]  # fmt: skip
        return [codec.max_nbytes(tuple(chunk.shape), self.dtype) for chunk in chunks], headers

    def _exchange_headers(
        self,
        outgoing: Sequence[Sequence[torch.Tensor]],
        codecs: Sequence[Codec],
        sizes: torch.Tensor,
        widths: Sequence[Sequence[int]],
        device: torch.device,
    ) -> tuple[list[int], list[list[ChunkHeader]]]:
        """Return the sizes of outgoing payloads, and per source the headers of incoming chunks."""
        rows = tuple(chunk.shape[0] for peer in outgoing for chunk in peer)
        formats = tuple(self._numbers[format_of(codec)] for codec in codecs)
        known = [on_device(rows, device), on_device(formats, device)]
        sent = torch.stack([sizes.to(device), *known], 1).view(-1)
        send = [_NUM_FIELDS * len(peer) for peer in outgoing]
        receive = [_NUM_FIELDS * len(peer) for peer in widths]
        came = torch.empty(sum(receive), dtype=torch.int64, device=device)
        with self.group.explained("exchange of sizes"):
            self.group.all_to_all(came, sent, receive, send).wait()
            # the host waits for the device here, and in ``Batch.completed`` if a codec has a second pass
            numbers = torch.cat([sizes.to(device), came]).tolist()
        own, rest = numbers[: len(rows)], iter(numbers[len(rows) :])
        headers = [
            [self._checked(ChunkHeader(next(rest), next(rest), next(rest)), source, width)
             for width in peer]
            for source, peer in enumerate(widths)
        ]  # fmt: skip
        return own, headers

    def _checked(self, header: ChunkHeader, source: int, width: int) -> ChunkHeader:
        """Reject a header that no sender writes, before anything is allocated for it."""
        possible = (
            0 <= header.format < len(self.formats) and header.rows >= 0 and header.nbytes >= 0
        )
        if possible and header.rows * width < 2**40:
            most = self.formats[header.format].max_nbytes((header.rows, width), self.dtype)
            possible = header.nbytes <= most
        if not possible:
            raise CorruptDataError(
                f"rank {source} announced an impossible chunk: {header.nbytes} bytes for "
                f"{header.rows} rows in format {header.format}"
            )
        return header


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of a chunk, sent ahead of its payload."""

    nbytes: int
    rows: int
    format: int


@dataclass(slots=True)
class Transfer:
    """Payloads in flight; ``sent`` holds the volume of each outgoing chunk."""

    wire: AllToAll
    operation: InFlight
    payload: torch.Tensor
    received: torch.Tensor
    headers: list[list[ChunkHeader]]
    widths: Sequence[Sequence[int]]
    sent: list[Volume]
    watch: Stopwatch

    def wait(self) -> list[list[torch.Tensor]]:
        """Return the decoded chunks of every source.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent a malformed payload.
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
        for source, (headers, widths) in enumerate(zip(self.headers, self.widths, strict=True)):
            offsets = frame_offsets([header.nbytes for header in headers]).tolist()
            for header, width, offset in zip(headers, widths, offsets, strict=False):
                payload = self.received[start + offset : start + offset + header.nbytes]
                try:
                    check_payload_size(payload, header.rows * width)
                except CorruptDataError as error:
                    raise CorruptDataError(f"rank {source} sent too little: {error}") from error
                payloads.append(payload)
                infos.append(TensorInfo((header.rows, width), self.wire.dtype))
                codecs.append(self.wire.formats[header.format])
            start += offsets[-1]
        chunks = iter(decode_batch(Batch.of(payloads), infos, codecs))
        return [[next(chunks) for _ in headers] for headers in self.headers]


def _check_rows(headers: Sequence[Sequence[ChunkHeader]], rows: Sequence[Sequence[int]]) -> None:
    for source, (peer, wanted) in enumerate(zip(headers, rows, strict=True)):
        for header, expected in zip(peer, wanted, strict=True):
            if header.rows != expected:
                raise CorruptDataError(
                    f"rank {source} announced a chunk of {header.rows} rows, {expected} are expected"
                )


def _check_fixed(
    codecs: Sequence[Codec], sizes: torch.Tensor, chunks: Sequence[torch.Tensor]
) -> None:
    """Reject payloads whose size differs from what the codec states; on a device the encoder checks."""
    if sizes.device.type == "cpu":
        for codec, chunk, size in zip(codecs, chunks, sizes.tolist(), strict=True):
            check_written(codec, size, tuple(chunk.shape), chunk.dtype)


def _totals(
    sizes: Sequence[int], headers: Sequence[Sequence[ChunkHeader]], lengths: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the frame bytes sent to each peer, and those received from each.

    Args:
        sizes: bytes of all outgoing payloads, grouped by peer.
        headers: per source, the headers of incoming chunks.
        lengths: number of payloads for each peer.
    """
    rest = iter(sizes)
    outgoing = [[next(rest) for _ in range(length)] for length in lengths]
    incoming = [[header.nbytes for header in peer] for peer in headers]
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
