"""Chunks of rows between ranks: encoded, sizes first, then one collective for all payloads.

What travels ahead of the payload, int64 per chunk: its bytes, its rows, and the number of its format.
Nothing does where every rank can tell these, as it can for gradients that a codec of fixed size encodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from weakref import WeakSet

import torch
import torch.distributed as dist

from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import Codec, check_payload_size, check_written
from tersor.container import decode_payloads, encode_batch, frame_offsets
from tersor.errors import CorruptDataError, ExchangeError, SpecError, TersorError
from tersor.kernels.kept import on_device
from tersor.sites.embeddings.agreement import gathered, tell_of_failure
from tersor.sites.embeddings.stats import Stopwatch
from tersor.types import Bound, TensorInfo

_NUM_FIELDS: Final = 3
_MAX_NBYTES: Final = 2**31 - 1
"""torch counts the elements of an all-to-all in 32 bits."""
_ANY_BOUND: Final = Bound.absolute(1.0)


def format_of(codec: Codec) -> Codec:
    """Return what a decoder must know of a codec: all but its bound."""
    return replace(codec, bound=_ANY_BOUND) if isinstance(codec, BoundedCodec) else codec


def _timeout_of(group: dist.ProcessGroup | None, device: torch.device) -> timedelta | None:
    """Return how long a group waits for its ranks, which a new group does not take over."""
    whole: Any = group or dist.group.WORLD
    # torch has no public way to ask
    options = getattr(whole._get_backend(device), "options", None)  # noqa: SLF001
    return getattr(options, "_timeout", None)


@dataclass(frozen=True, slots=True)
class Sent:
    """One chunk as it went out: original and encoded bytes."""

    original_nbytes: int
    encoded_nbytes: int


class Wire:
    """Moves lists of chunks between all ranks of a group of its own.

    Every rank calls ``start`` in the same order. A rank that fails leaves the group, so that the
    others fail too instead of waiting for it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        formats: Sequence[Codec],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make a group with the ranks of ``group`` (all of them if None); a collective call.

        Args:
            group: whose ranks take part.
            formats: of every codec that any rank will send with; the same list on all ranks.
            dtype: of all chunks.
            device: of all chunks; a rank that sends none receives there too.

        Raises:
            ExchangeError: a rank could not connect.
        """
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.formats = tuple(format_of(codec) for codec in formats)
        self.dtype, self.device = dtype, device
        self._numbers = {codec: number for number, codec in enumerate(self.formats)}
        self._transfers: WeakSet[Transfer] = WeakSet()
        self._group: Any = None
        with self._explained("set-up"):
            self._connect(group)

    def _connect(self, group: dist.ProcessGroup | None) -> None:
        """Join a new group, and return when every rank has.

        A rank that left while another still connects would break its connecting.
        """
        try:
            self._group = dist.new_group(
                dist.get_process_group_ranks(group or dist.group.WORLD),
                backend=dist.get_backend(group),
                timeout=_timeout_of(group, self.device),
            )
        except RuntimeError:
            tell_of_failure(group)
            raise
        with self.left_on_error():
            for rank, is_connected in enumerate(gathered(True, group)):
                if not is_connected:
                    raise ExchangeError(f"rank {rank} could not connect; look at its error")

    def close(self) -> None:
        """Leave the group; what peers still wait for fails at once."""
        group, self._group = self._group, None
        for transfer in self._transfers:
            transfer.take_work()
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    @contextmanager
    def left_on_error(self) -> Iterator[None]:
        """Leave the group on any error or interrupt, which stays what it is.

        Also on one that the peers may be making too: a rank cannot know, and they may be waiting.
        """
        if self._group is None:
            raise ExchangeError("this exchange failed or was closed before; make a new one")
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def guarded(self, phase: str) -> Iterator[None]:
        """Leave the group on any error, and say what the backend's error means."""
        with self.left_on_error(), self._explained(phase):
            yield

    @contextmanager
    def _explained(self, phase: str) -> Iterator[None]:
        try:
            yield
        except TersorError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            # frames of torch hold the group, and a group that is held stays connected
            raise ExchangeError(
                f"the {phase} of an embedding exchange failed on rank {self.rank}: a peer left, "
                f"failed or timed out; look for the first error of any rank ({reason})"
            ) from error.with_traceback(None)

    def start(
        self,
        outgoing: Sequence[Sequence[torch.Tensor]],
        codecs: Sequence[Sequence[Codec]],
        widths: Sequence[Sequence[int]],
        watch: Stopwatch,
        rows: Sequence[Sequence[int]] | None = None,
        agreed: Codec | None = None,
    ) -> Transfer:
        """Encode chunks and start to send them.

        Args:
            outgoing: per destination, chunks [rows, width].
            codecs: per destination, the codec of each chunk.
            widths: per source, the width of each chunk that will come.
            watch: counts the time of the phases.
            rows: per source, the rows of each chunk that will come, where this rank knows them.
            agreed: the codec of all chunks of all ranks, where all of them know it and their ``rows``;
                if it is of fixed size, nothing travels ahead of the payload, and no host waits.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer announced what cannot be.
            SpecError: too many bytes for one collective, or a codec that is wrong about its sizes.
        """
        chunks = [chunk for peer in outgoing for chunk in peer]
        used = [codec for peer in codecs for codec in peer]
        device = chunks[0].device if chunks else self.device
        with self.guarded("encoding"), watch.phase("encode", device):
            batch = encode_batch(chunks, used)
        if agreed is not None and agreed.size_kind == "fixed" and rows is not None:
            heads = self._known_heads(agreed, rows, widths)
            sizes = [agreed.max_nbytes(tuple(chunk.shape), self.dtype) for chunk in chunks]
            with self.left_on_error():
                _check_fixed(agreed, batch.sizes, chunks)
        else:
            with self.guarded("exchange of sizes"), watch.phase("sizes", device):
                sizes, heads = self._exchange_heads(outgoing, used, batch.sizes, widths, device)
                if rows is not None:
                    _check_rows(heads, rows)
        with self.guarded("exchange of payloads"), watch.phase("payload", device):
            send = _sums(sizes, [len(peer) for peer in outgoing])
            receive = [int(frame_offsets([head.nbytes for head in peer])[-1]) for peer in heads]
            _check_total(send, receive)
            received = torch.empty(sum(receive), dtype=torch.uint8, device=device)
            # that of no chunks is on the CPU
            payload = batch.buffer[: sum(send)].to(device)
            work = dist.all_to_all_single(
                received, payload, receive, send, group=self._group, async_op=True
            )
        sent = [Sent(x.nbytes, size) for x, size in zip(chunks, sizes, strict=True)]
        transfer = Transfer(self, work, payload, received, heads, widths, sent, watch)
        self._transfers.add(transfer)
        return transfer

    def _known_heads(
        self, codec: Codec, rows: Sequence[Sequence[int]], widths: Sequence[Sequence[int]]
    ) -> list[list[Head]]:
        """Return the heads of what will come, per source, as their senders would write them."""
        number = self._numbers[format_of(codec)]
        return [
            [Head(codec.max_nbytes(shape, self.dtype), shape[0], number)
             for shape in zip(*peer, strict=True)]
            for peer in zip(rows, widths, strict=True)
        ]  # fmt: skip

    def _exchange_heads(
        self,
        outgoing: Sequence[Sequence[torch.Tensor]],
        codecs: Sequence[Codec],
        sizes: torch.Tensor,
        widths: Sequence[Sequence[int]],
        device: torch.device,
    ) -> tuple[list[int], list[list[Head]]]:
        """Return the sizes of what goes out, and the heads of what will come, per source."""
        rows = tuple(chunk.shape[0] for peer in outgoing for chunk in peer)
        formats = tuple(self._numbers[format_of(codec)] for codec in codecs)
        known = [on_device(rows, device), on_device(formats, device)]
        sent = torch.stack([sizes.to(device), *known], 1).view(-1)
        send = [_NUM_FIELDS * len(peer) for peer in outgoing]
        receive = [_NUM_FIELDS * len(peer) for peer in widths]
        came = torch.empty(sum(receive), dtype=torch.int64, device=device)
        dist.all_to_all_single(came, sent, receive, send, group=self._group)
        # the one time that the host waits for a device
        numbers = torch.cat([sizes.to(device), came]).tolist()
        own, rest = numbers[: len(rows)], iter(numbers[len(rows) :])
        heads = [
            [self._checked(Head(next(rest), next(rest), next(rest)), source, width)
             for width in peer]
            for source, peer in enumerate(widths)
        ]  # fmt: skip
        return own, heads

    def _checked(self, head: Head, source: int, width: int) -> Head:
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
class Head:
    """What is announced of a chunk."""

    nbytes: int
    rows: int
    format: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Transfer:
    """Payloads on their way."""

    wire: Wire
    work: Any
    payload: torch.Tensor
    received: torch.Tensor
    heads: list[list[Head]]
    widths: Sequence[Sequence[int]]
    sent: list[Sent]
    watch: Stopwatch

    def wait(self) -> list[list[torch.Tensor]]:
        """Return the decoded chunks of every source.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent bytes that are no payload.
        """
        device = self.received.device
        with self.wire.guarded("exchange of payloads"), self.watch.phase("payload", device):
            self.take_work().wait()
        with self.wire.guarded("decoding"), self.watch.phase("decode", device):
            return self._decoded()

    def take_work(self) -> Any:
        """Give the work away: a work that is kept keeps the group connected and its peers waiting."""
        work, self.work = self.work, None
        return work

    def _decoded(self) -> list[list[torch.Tensor]]:
        payloads, infos, codecs = [], [], []
        start = 0
        for source, (heads, widths) in enumerate(zip(self.heads, self.widths, strict=True)):
            offsets = frame_offsets([head.nbytes for head in heads]).tolist()
            for head, width, offset in zip(heads, widths, offsets, strict=False):
                payload = self.received[start + offset : start + offset + head.nbytes]
                _check_size(payload, head.rows * width, source)
                payloads.append(payload)
                infos.append(TensorInfo((head.rows, width), self.wire.dtype))
                codecs.append(self.wire.formats[head.format])
            start += offsets[-1]
        chunks = iter(decode_payloads(payloads, infos, codecs))
        return [[next(chunks) for _ in heads] for heads in self.heads]


def _check_rows(heads: Sequence[Sequence[Head]], rows: Sequence[Sequence[int]]) -> None:
    for source, (peer, wanted) in enumerate(zip(heads, rows, strict=True)):
        for head, expected in zip(peer, wanted, strict=True):
            if head.rows != expected:
                raise CorruptDataError(
                    f"rank {source} announced a chunk of {head.rows} rows, {expected} are expected"
                )


def _check_fixed(codec: Codec, sizes: torch.Tensor, chunks: Sequence[torch.Tensor]) -> None:
    """Refuse what a codec wrote otherwise than it says; on a device the encoder has looked."""
    if sizes.device.type == "cpu":
        for chunk, size in zip(chunks, sizes.tolist(), strict=True):
            check_written(codec, size, tuple(chunk.shape), chunk.dtype)


def _check_size(payload: torch.Tensor, num_values: int, source: int) -> None:
    try:
        check_payload_size(payload, num_values)
    except CorruptDataError as error:
        raise CorruptDataError(f"rank {source} sent too little: {error}") from error


def _sums(sizes: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return the bytes of the frame for each peer, of as many payloads as ``lengths`` says."""
    sums, start = [], 0
    for length in lengths:
        sums.append(int(frame_offsets(sizes[start : start + length])[-1]))
        start += length
    return sums


def _check_total(*totals: Sequence[int]) -> None:
    for total in totals:
        if sum(total) > _MAX_NBYTES:
            raise SpecError(
                f"one exchange can move {_MAX_NBYTES} bytes per rank, not {sum(total)}; use smaller "
                "batches or a tighter codec"
            )
