"""One exchange in both directions, and the two nodes it has in the graph of autograd.

Communication overlaps with what the caller does between ``Start`` and ``Wait``, forward, and with what
autograd does between ``Wait`` and ``Start``, backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Unsent(NamedTuple):
    """What a rank without peers encoded and decoded, in place of a ``Transfer``."""

    chunks: list[torch.Tensor]
    sent: list[Volume]

    def wait(self) -> list[list[torch.Tensor]]:
        """Return the chunks as those of the only source."""
        return [self.chunks]


@dataclass(eq=False)
class ExchangeRound:
    """One exchange in both directions, held by the two nodes of the graph.

    Attributes:
        exchange: whose tables are sent.
        splits: per own table, the rows that go to each rank.
        num_rows: of every table for this rank; None where only the owners know.
        place: number of this exchange and its iteration, the same on all ranks.
        sending: how rows and gradients are encoded.
        transfer: what is on its way.
    """

    exchange: Exchange
    splits: Sequence[Sequence[int]]
    num_rows: int | None
    place: tuple[int, int]
    sending: Sending
    transfer: Transfer | Unsent | None = None

    def start_forward(self, rows: Sequence[torch.Tensor]) -> None:
        """Encode rows and start to send them."""
        exchange, codecs, stats = self.exchange, self.sending.codecs, self.sending.stats
        layout, peers = exchange.layout, range(exchange.world_size)
        if exchange.wire is None:
            self.transfer = self._round_trip(rows, codecs, stats.forward_times)
        else:
            parts = [x.detach().split(list(s)) for x, s in zip(rows, self.splits, strict=True)]
            outgoing = [[part[rank] for part in parts] for rank in peers]
            widths = [[layout.widths[table] for table in layout.of(rank)] for rank in peers]
            turn = Turn(self.sending.channels[0], *self.place)
            self.transfer = exchange.wire.start(
                outgoing, [codecs for _ in peers], widths, stats.forward_times, turn
            )
        stats.count_forward(exchange.tables * exchange.world_size, self.transfer.sent)

    def wait_forward(self) -> list[torch.Tensor]:
        """Return the rows of all tables for this rank's samples."""
        layout = self.exchange.layout
        found: dict[int, torch.Tensor] = {}
        for rank, peer in enumerate(self._arrived()):
            found.update(zip(layout.of(rank), peer, strict=True))
        self._check_rows(found)
        return [found[table] for table in range(len(layout.owners))]

    def _arrived(self) -> list[list[torch.Tensor]]:
        """Wait, and forget what came: rows know this round, and knowing them would keep both."""
        transfer, self.transfer = self.transfer, None
        return [] if transfer is None else transfer.wait()

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
    ) -> Unsent:
        """Encode and decode without sending."""
        xs, device = [x.detach() for x in xs], self.exchange.device
        with watch.phase("encode", device):
            batch = encode_batch(xs, codecs).completed()
        with watch.phase("decode", device):
            decoded = decode_batch(batch, [TensorInfo.of(x) for x in xs], codecs)
        sizes = batch.sizes.tolist()
        return Unsent(decoded, [Volume(x.nbytes, n) for x, n in zip(xs, sizes, strict=True)])

    def start_backward(self, gradients: Sequence[torch.Tensor]) -> None:
        """Encode gradients and start to send them."""
        exchange, codec, stats = self.exchange, self.sending.backward, self.sending.stats
        layout, peers = exchange.layout, range(exchange.world_size)
        if exchange.wire is None:
            codecs = [codec] * len(gradients)
            self.transfer = self._round_trip(gradients, codecs, stats.backward_times)
        else:
            outgoing = [[gradients[table] for table in layout.of(rank)] for rank in peers]
            widths = [[layout.widths[table] for table in exchange.tables] for _ in peers]
            # as many as went out: the forward exchange has made sure of that
            rows = [[split[rank] for split in self.splits] for rank in peers]
            self.transfer = exchange.wire.start(
                outgoing,
                [[codec] * len(peer) for peer in outgoing],
                widths,
                stats.backward_times,
                Turn(self.sending.channels[1], *self.place),
                rows,
                codec,
            )
        for sent in self.transfer.sent:
            stats.backward.add(sent)

    def wait_backward(self) -> list[torch.Tensor]:
        """Return the gradients of this rank's tables for all samples."""
        chunks = self._arrived()
        if self.exchange.wire is None:
            return chunks[0]
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
