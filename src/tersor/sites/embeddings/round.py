"""One exchange in both directions, and the two nodes it has in the graph of autograd.

Communication overlaps with what the caller does between ``Start`` and ``Wait``, forward, and with what
autograd does between ``Wait`` and ``Start``, backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tersor.codecs.codec import Codec
from tersor.comm import Stopwatch, Volume
from tersor.comm.all_to_all import Transfer
from tersor.comm.group import Turn
from tersor.container import decode_batch, encode_batch
from tersor.errors import SpecError
from tersor.sites.embeddings.stats import ExchangeStats
from tersor.types import TensorInfo

if TYPE_CHECKING:
    from tersor.sites.embeddings.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Sending:
    """How one exchange sends its rows and gradients, and where that is counted.

    Attributes:
        codecs: of each own table.
        backward: of all gradients.
        channels: names of both directions, for ranks that are out of step.
        stats: what counts it.
    """

    codecs: list[Codec]
    backward: Codec
    channels: tuple[str, str]
    stats: ExchangeStats


class ExchangeRound:
    """One exchange in both directions, held by the two nodes of the graph."""

    def __init__(
        self,
        exchange: Exchange,
        splits: Sequence[Sequence[int]],
        num_rows: int | None,
        place: tuple[int, int],
        sending: Sending,
    ) -> None:
        """Remember what both directions need.

        Args:
            exchange: whose tables are sent.
            splits: per own table, the rows that go to each rank.
            num_rows: of every table for this rank; None where only the owners know.
            place: number of this exchange and its iteration, the same on all ranks.
            sending: how rows and gradients are encoded.
        """
        self.exchange, self.place, self.sending = exchange, place, sending
        self.splits, self.num_rows = splits, num_rows
        self.transfer: Transfer | None = None
        self.local: list[torch.Tensor] = []

    def start_forward(self, rows: Sequence[torch.Tensor]) -> None:
        """Encode rows and start to send them."""
        exchange, codecs, stats = self.exchange, self.sending.codecs, self.sending.stats
        if exchange.wire is None:
            self.local, sizes = self._round_trip(rows, codecs, stats.forward_times)
            for table, x, size in zip(exchange.tables, rows, sizes, strict=True):
                stats.tables.setdefault(table, Volume()).add(x.nbytes, size)
            return
        parts = [x.detach().split(list(s)) for x, s in zip(rows, self.splits, strict=True)]
        outgoing = [[part[rank] for part in parts] for rank in range(exchange.world_size)]
        widths = [
            [exchange.layout.widths[table] for table in exchange.layout.of(rank)]
            for rank in range(exchange.world_size)
        ]
        self.transfer = exchange.wire.start(
            outgoing,
            [codecs] * exchange.world_size,
            widths,
            stats.forward_times,
            Turn(self.sending.channels[0], *self.place),
        )
        tables = exchange.tables * exchange.world_size
        for table, sent in zip(tables, self.transfer.sent, strict=True):
            volume = stats.tables.setdefault(table, Volume())
            volume.add(sent.original_nbytes, sent.encoded_nbytes)

    def wait_forward(self) -> list[torch.Tensor]:
        """Return the rows of all tables for this rank's samples."""
        exchange = self.exchange
        if self.transfer is None:
            return self._taken()
        chunks = self.transfer.wait()
        self.transfer = None
        found: dict[int, torch.Tensor] = {}
        for rank, peer in enumerate(chunks):
            found.update(zip(exchange.layout.of(rank), peer, strict=True))
        self._check_rows(found)
        return [found[table] for table in range(len(exchange.layout.owners))]

    def _taken(self) -> list[torch.Tensor]:
        """Give away what stayed here: rows know this passage, and knowing them would keep both."""
        local, self.local = self.local, []
        return local

    def _check_rows(self, found: Mapping[int, torch.Tensor]) -> None:
        if self.num_rows is None:
            return
        for table, chunk in found.items():
            if chunk.shape[0] != self.num_rows:
                owner = self.exchange.layout.owners[table]
                raise SpecError(
                    f"rank {owner} sent {chunk.shape[0]} samples of table {table}, this rank has "
                    f"{self.num_rows}; give all ranks the same batches"
                )

    def _round_trip(
        self, xs: Sequence[torch.Tensor], codecs: Sequence[Codec], watch: Stopwatch
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Encode and decode without sending; return also the bytes of each payload."""
        xs, device = [x.detach() for x in xs], self.exchange.device
        with watch.phase("encode", device):
            batch = encode_batch(xs, codecs).completed()
        with watch.phase("decode", device):
            decoded = decode_batch(batch, [TensorInfo.of(x) for x in xs], codecs)
        return decoded, batch.sizes.tolist()

    def start_backward(self, gradients: Sequence[torch.Tensor]) -> None:
        """Encode gradients and start to send them."""
        exchange, codec, stats = self.exchange, self.sending.backward, self.sending.stats
        layout = exchange.layout
        if exchange.wire is None:
            self.local, sizes = self._round_trip(
                gradients, [codec] * len(gradients), stats.backward_times
            )
            for x, size in zip(gradients, sizes, strict=True):
                stats.backward.add(x.nbytes, size)
            return
        peers = range(exchange.world_size)
        outgoing = [[gradients[table] for table in layout.of(rank)] for rank in peers]
        codecs = [[codec] * len(peer) for peer in outgoing]
        widths = [[layout.widths[table] for table in exchange.tables] for _ in peers]
        # as many as went out: the forward exchange has made sure of that
        rows = [[split[rank] for split in self.splits] for rank in peers]
        turn = Turn(self.sending.channels[1], *self.place)
        self.transfer = exchange.wire.start(
            outgoing, codecs, widths, stats.backward_times, turn, rows, codec
        )
        for sent in self.transfer.sent:
            stats.backward.add(sent.original_nbytes, sent.encoded_nbytes)

    def wait_backward(self) -> list[torch.Tensor]:
        """Return the gradients of this rank's tables for all samples."""
        if self.transfer is None:
            return self._taken()
        chunks = self.transfer.wait()
        self.transfer = None
        whole = [torch.cat(parts) for parts in zip(*chunks, strict=True)]
        if self.exchange.gradient_division:
            # after decoding: half precision would lose gradients that are divided before
            for gradient in whole:
                gradient.div_(self.exchange.world_size)
        return whole


class Start(torch.autograd.Function):
    """Starts the forward exchange; ends the backward one."""

    @staticmethod
    def forward(
        ctx: Any, slot: ExchangeRound, anchor: torch.Tensor, *rows: torch.Tensor
    ) -> torch.Tensor:
        """Return a token that ``Wait`` takes; ``anchor`` makes a rank without tables part of backward."""
        ctx.slot = slot
        slot.start_forward(rows)
        return torch.zeros_like(anchor)

    @staticmethod
    def backward(ctx: Any, *token: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the rows."""
        with ctx.slot.exchange.guarded():
            return None, token[0], *ctx.slot.wait_backward()


class Wait(torch.autograd.Function):
    """Ends the forward exchange; starts the backward one."""

    @staticmethod
    def forward(ctx: Any, slot: ExchangeRound, token: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the rows of all tables."""
        ctx.slot = slot
        ctx.save_for_backward(token)
        return tuple(slot.wait_forward())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        """Start to send the gradients of the rows."""
        with ctx.slot.exchange.guarded():
            ctx.slot.start_backward([g.contiguous() for g in gradients])
        return None, torch.zeros_like(ctx.saved_tensors[0])
