"""Codecs as TorchRec calls them, for payloads whose size depends on the data.

TorchRec asks a codec to encode, asks it for the size of every peer's part, sends what was encoded, and
asks it to decode. It takes sizes to follow from shapes. So its own collective stays empty: every size is
0, and what is encoded travels beside it through an ``AllToAll``. What TorchRec asks sizes for tells who gets
how much, so that uneven batches and sequences work too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from tersor.codecs.codec import Codec
from tersor.comm import Stopwatch, Volume
from tersor.comm.all_to_all import AllToAll, Transfer
from tersor.comm.group import Turn
from tersor.errors import BackendUnavailableError, CorruptDataError, SpecError
from tersor.sites.embeddings.plan import CodecPlan
from tersor.sites.embeddings.stats import ExchangeStats
from tersor.sites.embeddings.torchrec.route import Route, row_width


class Context:
    """What one direction of one exchange must remember between TorchRec's calls.

    ``row_dim`` and ``padded_dim_sum_per_rank`` are read by TorchRec: no padding is wanted.
    """

    row_dim = 0
    padded_dim_sum_per_rank = None

    def __init__(self) -> None:
        self.flat: torch.Tensor | None = None
        self.lengths: list[int] = []
        self.dims: list[int] | None = None
        self.transfer: Transfer | None = None
        self.failure: CorruptDataError | None = None


class VariableCodec(ABC):
    """One direction of an all-to-all of TorchRec.

    Attributes:
        quantized_dtype: what TorchRec's planner takes the size of one value from.
        iteration: that bounds decay with; 0 for what has none.
    """

    quantized_dtype = torch.uint8

    def __init__(self, route: Route, wire: AllToAll, stats: ExchangeStats, channel: str) -> None:
        self.route, self.wire, self.stats, self.channel = route, wire, stats, channel
        self.num_started = 0
        self.iteration = 0

    def create_context(self) -> Context:
        """Return the memory of one exchange."""
        return Context()

    def padded_size(
        self, input_tensor: torch.Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: Context
    ) -> tuple[int, int]:
        """Return the width of this rank's rows and no padding; TorchRec asks for pooled rows only."""
        del my_rank
        qcomm_ctx.dims = list(dim_per_rank)
        return input_tensor.shape[-1], 0

    def encode(self, input_tensor: torch.Tensor, ctx: Context | None = None) -> torch.Tensor:
        """Keep what is to be sent, and give TorchRec nothing to send."""
        if ctx is None or ctx.flat is not None or ctx.lengths:
            raise self._lost()
        with self.wire.group.abort_on_error():
            self._check(input_tensor, ctx)
        ctx.flat = input_tensor.detach().reshape(-1)
        return input_tensor.new_zeros(0, dtype=torch.uint8)

    def _check(self, x: torch.Tensor, ctx: Context) -> None:
        """Raise ``SpecError`` for a tensor that cannot be sent."""
        del ctx
        if x.dtype != self.wire.dtype:
            raise SpecError(
                f"the codecs were made for {self.wire.dtype}, not for {x.dtype}; give dtype="
            )
        if torch.is_grad_enabled() and x.requires_grad:
            raise SpecError(
                "synchronous collectives of TorchRec cannot be compressed; turn them off"
            )

    def calc_quantized_size(self, input_len: int, ctx: Context | None = None) -> int:
        """Take note of what goes to or comes from a rank; with the last of them, start to send.

        Raises:
            ExchangeError: a peer failed.
            BackendUnavailableError: this TorchRec calls its codecs in another order.
        """
        if ctx is None or ctx.flat is None:
            raise self._lost()
        ctx.lengths.append(int(input_len))
        if len(ctx.lengths) == 2 * self.route.world_size:
            try:
                self._start(ctx, ctx.flat)
            except CorruptDataError as error:
                # the others do not know and go on to TorchRec's collective, where a rank that left
                # would be waited for; all hear of it when they decode
                ctx.failure = error
            ctx.flat = None
        return 0

    def _start(self, ctx: Context, flat: torch.Tensor) -> None:
        num_peers = self.route.world_size
        first, second = ctx.lengths[:num_peers], ctx.lengths[num_peers:]
        send, receive = (second, first) if self.route.receives_first else (first, second)
        if not self.route.fits(flat.numel(), send, receive):
            raise self._lost()
        outgoing = self.route.chunks(flat, send)
        widths = [[block.width for block in blocks] for blocks in self.route.incoming]
        rows = self.route.rows(receive)
        # sizes travel ahead even where all ranks know them: a peer that left is noticed then, and not
        # in TorchRec's own collective, which would wait for it
        turn = Turn(self.channel, self.num_started, self.iteration)
        self.num_started += 1
        ctx.transfer = self.wire.start(
            outgoing, self._codecs(flat), widths, self._watch(), turn, rows
        )
        self._count(ctx.transfer.sent)

    def decode(self, input_grad: torch.Tensor, ctx: Context | None = None) -> torch.Tensor:
        """Return what came, source by source, flat.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent what cannot be.
            BackendUnavailableError: this TorchRec calls its codecs in another order.
        """
        del input_grad
        if ctx is not None and ctx.failure is not None:
            raise ctx.failure
        if ctx is None or ctx.transfer is None:
            raise self._lost()
        chunks = ctx.transfer.wait()
        ctx.transfer = None
        nothing = torch.zeros(0, dtype=self.wire.dtype, device=self.wire.device)
        return torch.cat([nothing, *(torch.cat(peer, 1).view(-1) for peer in chunks if peer)])

    def _lost(self) -> BackendUnavailableError:
        """Leave the group, and return the error of a TorchRec that calls otherwise than expected."""
        self.wire.group.close()
        return BackendUnavailableError(
            f"torchrec {metadata.version('torchrec')} calls its codecs in an order that tersor does "
            "not know; install torchrec 1.8, or give its sharders no codecs of tersor"
        )

    @abstractmethod
    def _codecs(self, flat: torch.Tensor) -> list[list[Codec]]:
        """Return the codec of every chunk, per destination."""

    @abstractmethod
    def _watch(self) -> Stopwatch:
        """Return what counts the time."""

    @abstractmethod
    def _count(self, sent: Sequence[Volume]) -> None:
        """Count what went out."""


class ForwardCodec(VariableCodec):
    """Sends looked-up rows; every block has the bound of its table."""

    is_pooled = False

    def __init__(
        self, route: Route, wire: AllToAll, stats: ExchangeStats, channel: str, plan: CodecPlan
    ) -> None:
        super().__init__(route, wire, stats, channel)
        self.plan = plan

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved iteration and saved choices; see ``CodecPlan.load_state_dict``."""
        tables = {block.table for block in self.route.outgoing[0]}
        self.iteration = self.plan.load_state_dict(state, tables)

    def _codecs(self, flat: torch.Tensor) -> list[list[Codec]]:
        own = self.route.outgoing[0]
        if len(self.plan.candidates) > 1 and own:
            columns = flat.view(-1, row_width(own)).split([block.width for block in own], 1)
            # of a table with several features, the last one speaks for all
            rows = dict(zip([block.table for block in own], columns, strict=True))
            self.plan.remeasure_if_due(list(rows), list(rows.values()), self.iteration)
        chosen = [self.plan.codec(block.table, self.iteration) for block in own]
        return [chosen] * self.route.world_size

    def _watch(self) -> Stopwatch:
        return self.stats.forward_times

    def _count(self, sent: Sequence[Volume]) -> None:
        self.iteration += 1
        self.stats.num_exchanges += 1
        tables = (block.table for peer in self.route.outgoing for block in peer)
        self.stats.count_forward(tables, sent)


class PooledCodec(ForwardCodec):
    """Sends pooled rows, whose widths TorchRec names beforehand."""

    is_pooled = True

    def _check(self, x: torch.Tensor, ctx: Context) -> None:
        super()._check(x, ctx)
        if ctx.dims is None:
            raise SpecError(
                "features with batches of their own cannot be compressed; give all features of a "
                "rank one batch size, or the sharder no codecs"
            )
        if ctx.dims != [row_width(blocks) for blocks in self.route.incoming]:
            raise SpecError(
                "the model was sharded anew after its codecs were attached; attach them again"
            )


class BackwardCodec(VariableCodec):
    """Sends gradients, all with one codec."""

    def __init__(
        self, route: Route, wire: AllToAll, stats: ExchangeStats, channel: str, codec: Codec
    ) -> None:
        super().__init__(route, wire, stats, channel)
        self.codec = codec

    def _codecs(self, flat: torch.Tensor) -> list[list[Codec]]:
        del flat
        return [[self.codec] * len(blocks) for blocks in self.route.outgoing]

    def _watch(self) -> Stopwatch:
        return self.stats.backward_times

    def _count(self, sent: Sequence[Volume]) -> None:
        for one in sent:
            self.stats.backward.add(one)


class PassThrough:
    """Leaves gradients to TorchRec as they are.

    TorchRec's own codec that does nothing lacks the property that its planner reads.
    """

    def __init__(self, dtype: torch.dtype, stats: ExchangeStats) -> None:
        self.quantized_dtype, self.stats = dtype, stats

    def create_context(self) -> None:
        """Remember nothing."""

    def padded_size(
        self, input_tensor: torch.Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: None
    ) -> tuple[int, int]:
        """Return the width of this rank's rows and no padding."""
        del dim_per_rank, my_rank, qcomm_ctx
        return input_tensor.shape[-1], 0

    def encode(self, input_tensor: torch.Tensor, ctx: None = None) -> torch.Tensor:
        """Return what is given."""
        del ctx
        self.stats.backward.add(Volume(input_tensor.nbytes, input_tensor.nbytes))
        return input_tensor

    def calc_quantized_size(self, input_len: int, ctx: None = None) -> int:
        """Return what is given."""
        del ctx
        return input_len

    def decode(self, input_grad: torch.Tensor, ctx: None = None) -> torch.Tensor:
        """Return what is given."""
        del ctx
        return input_grad


class Unattached:
    """Stands for a codec until the model is sharded and its tables have their place."""

    quantized_dtype = torch.uint8

    def __init__(self, is_pooled: bool) -> None:
        self.is_pooled = is_pooled

    def create_context(self) -> None:
        """Say what is missing."""
        raise SpecError(
            "the codecs do not know the sharded model yet; call attach(model) on them, once, after "
            "DistributedModelParallel"
        )
