"""One exchange in both directions, and its two nodes in the autograd graph.

In forward, communication overlaps with the caller's work between ``Start`` and ``Wait``. In backward, it overlaps with
autograd's work between ``Wait`` and ``Start``.
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
    """The codecs, channels and statistics of one exchange.

    Attributes:
        codecs: the codec of each table that this rank owns.
        backward: the codec of all gradients.
        channels: names of both directions, which reveal ranks that are out of step.
        stats: the statistics to update.
    """

    codecs: list[Codec]
    backward: Codec
    channels: tuple[str, str]
    stats: ExchangeStats


class LocalTransfer(NamedTuple):
    """The counterpart of ``Transfer`` without peers: chunks that were encoded and decoded locally."""

    chunks: list[torch.Tensor]
    sent: list[Volume]

    def wait(self) -> list[list[torch.Tensor]]:
        """Return the chunks, as a list with a single source."""
        return [self.chunks]


@dataclass(eq=False)
class ExchangeRound:
    """The state of one exchange in both directions, shared by its two autograd nodes.

    Attributes:
        exchange: the exchange that owns the tables.
        splits: for each own table, the number of rows for each rank.
        num_rows: number of rows of every table for this rank; None if only the owners know.
        turn_numbers: sequence number of this exchange and its iteration, the same on all ranks.
        sending: the codecs, channels and statistics.
        transfer: the transfer in flight; None if there is none.
    """

    exchange: Exchange
    splits: Sequence[Sequence[int]]
    num_rows: int | None
    turn_numbers: tuple[int, int]
    sending: Sending
    transfer: Transfer | LocalTransfer | None = None

    def start_forward(self, rows: Sequence[torch.Tensor]) -> None:
        """Encode the rows and start sending them."""
        exchange, codecs, stats = self.exchange, self.sending.codecs, self.sending.stats
        layout, peers = exchange.layout, range(exchange.world_size)
        if exchange.wire is None:
            self.transfer = self._round_trip(rows, codecs, stats.forward_times)
        else:
            parts = [x.detach().split(list(s)) for x, s in zip(rows, self.splits, strict=True)]
            outgoing = [[part[rank] for part in parts] for rank in peers]
            widths = [[layout.widths[table] for table in layout.of(rank)] for rank in peers]
            turn = Turn(self.sending.channels[0], *self.turn_numbers)
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
        """Wait for the transfer in flight and drop it: rows reference this round, so holding them would create a cycle."""
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
    ) -> LocalTransfer:
        """Encode and decode locally, without sending."""
        xs, device = [x.detach() for x in xs], self.exchange.device
        with watch.phase("encode", device):
            batch = encode_batch(xs, codecs).completed()
        with watch.phase("decode", device):
            decoded = decode_batch(batch, [TensorInfo.of(x) for x in xs], codecs)
        sizes = batch.sizes.tolist()
        return LocalTransfer(decoded, [Volume(x.nbytes, n) for x, n in zip(xs, sizes, strict=True)])

    def start_backward(self, gradients: Sequence[torch.Tensor]) -> None:
        """Encode the gradients and start sending them."""
        exchange, codec, stats = self.exchange, self.sending.backward, self.sending.stats
        layout, peers = exchange.layout, range(exchange.world_size)
        if exchange.wire is None:
            codecs = [codec] * len(gradients)
            self.transfer = self._round_trip(gradients, codecs, stats.backward_times)
        else:
            outgoing = [[gradients[table] for table in layout.of(rank)] for rank in peers]
            widths = [[layout.widths[table] for table in exchange.tables] for _ in peers]
            # as many rows as this rank sent: the forward exchange has verified that
            rows = [[split[rank] for split in self.splits] for rank in peers]
            self.transfer = exchange.wire.start(
                outgoing,
                [[codec] * len(peer) for peer in outgoing],
                widths,
                stats.backward_times,
                Turn(self.sending.channels[1], *self.turn_numbers),
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
            # divide after decoding: before it, small gradients could underflow in half precision
            for gradient in whole:
                gradient.div_(self.exchange.world_size)
        return whole


class Start(torch.autograd.Function):
    """The autograd node that starts the forward exchange and completes the backward one."""

    @staticmethod
    def forward(
        ctx: Any, slot: ExchangeRound, anchor: torch.Tensor, *rows: torch.Tensor
    ) -> torch.Tensor:
        """Start sending, and return the token for ``Wait``; ``anchor`` includes ranks without tables in backward."""
        ctx.slot = slot
        slot.start_forward(rows)
        return torch.zeros_like(anchor)

    @staticmethod
    def backward(ctx: Any, *token: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Wait for the gradients of the rows and return them."""
        with ctx.slot.exchange.guarded():
            return None, token[0], *ctx.slot.wait_backward()


class Wait(torch.autograd.Function):
    """The autograd node that completes the forward exchange and starts the backward one."""

    @staticmethod
    def forward(ctx: Any, slot: ExchangeRound, token: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Wait for the rows of all tables and return them."""
        ctx.slot = slot
        ctx.save_for_backward(token)
        return tuple(slot.wait_forward())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        """Start sending the gradients of the rows."""
        with ctx.slot.exchange.guarded():
            ctx.slot.start_backward([g.contiguous() for g in gradients])
        return None, torch.zeros_like(ctx.saved_tensors[0])
