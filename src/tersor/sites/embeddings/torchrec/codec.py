"""Implementations of TorchRec's codec interface for payloads whose size depends on the data.

TorchRec calls a codec to encode, queries the encoded size of every peer's part, sends the encoded tensor, and calls the
codec to decode. It assumes that sizes follow from shapes. These codecs therefore report a size of 0 for every part,
which leaves TorchRec's own collective empty, and send the payloads through a separate ``AllToAll``. The arguments of
the size queries reveal how much goes to each rank, so uneven batches and sequences work as well.
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
    """The state of one direction of one exchange between TorchRec's calls.

    TorchRec reads ``row_dim`` and ``padded_dim_sum_per_rank``; their values request no padding.
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
    """A codec for one direction of one of TorchRec's all-to-alls.

    Attributes:
        quantized_dtype: dtype from which TorchRec's planner derives the size of a value.
        iteration: iteration by which bounds decay; 0 for directions without bounds.
    """

    quantized_dtype = torch.uint8

    def __init__(self, route: Route, wire: AllToAll, stats: ExchangeStats, channel: str) -> None:
        self.route, self.wire, self.stats, self.channel = route, wire, stats, channel
        self.num_started = 0
        self.iteration = 0

    def create_context(self) -> Context:
        """Return the state of a new exchange."""
        return Context()

    def padded_size(
        self, input_tensor: torch.Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: Context
    ) -> tuple[int, int]:
        """Return the width of this rank's rows, and 0 for no padding. TorchRec calls this only for pooled rows."""
        del my_rank
        qcomm_ctx.dims = list(dim_per_rank)
        return input_tensor.shape[-1], 0

    def encode(self, input_tensor: torch.Tensor, ctx: Context | None = None) -> torch.Tensor:
        """Store the tensor to send, and return an empty tensor for TorchRec to send."""
        if ctx is None or ctx.flat is not None or ctx.lengths:
            raise self._unexpected_call_order()
        with self.wire.group.abort_on_error():
            self._check(input_tensor, ctx)
        ctx.flat = input_tensor.detach().reshape(-1)
        return input_tensor.new_zeros(0, dtype=torch.uint8)

    def _check(self, x: torch.Tensor, ctx: Context) -> None:
        """Raise ``SpecError`` if the tensor cannot be sent."""
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
        """Record the number of values to send to or receive from a rank; the last call starts the transfer.

        Returns 0, the size of TorchRec's own part.

        Raises:
            ExchangeError: a peer failed.
            BackendUnavailableError: this version of TorchRec calls its codecs in another order.
        """
        if ctx is None or ctx.flat is None:
            raise self._unexpected_call_order()
        ctx.lengths.append(int(input_len))
        if len(ctx.lengths) == 2 * self.route.world_size:
            try:
                self._start(ctx, ctx.flat)
            except CorruptDataError as error:
                # peers do not know of the error yet and enter TorchRec's collective, where they would wait for a
                # rank that left; decode raises it instead, when all ranks learn of it
                ctx.failure = error
            ctx.flat = None
        return 0

    def _start(self, ctx: Context, flat: torch.Tensor) -> None:
        num_peers = self.route.world_size
        first, second = ctx.lengths[:num_peers], ctx.lengths[num_peers:]
        send, receive = (second, first) if self.route.receives_first else (first, second)
        if not self.route.fits(flat.numel(), send, receive):
            raise self._unexpected_call_order()
        outgoing = self.route.chunks(flat, send)
        widths = [[block.width for block in blocks] for blocks in self.route.incoming]
        rows = self.route.rows(receive)
        # exchange sizes first even if all ranks know them: this detects a peer that left, for which TorchRec's own
        # collective would wait
        turn = Turn(self.channel, self.num_started, self.iteration)
        self.num_started += 1
        ctx.transfer = self.wire.start(
            outgoing, self._codecs(flat), widths, self._watch(), turn, rows
        )
        self._count(ctx.transfer.sent)

    def decode(self, input_grad: torch.Tensor, ctx: Context | None = None) -> torch.Tensor:
        """Wait for the transfer, and return the received values as a flat tensor, ordered by source rank.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent malformed payloads or sizes.
            BackendUnavailableError: this version of TorchRec calls its codecs in another order.
        """
        del input_grad
        if ctx is not None and ctx.failure is not None:
            raise ctx.failure
        if ctx is None or ctx.transfer is None:
            raise self._unexpected_call_order()
        chunks = ctx.transfer.wait()
        ctx.transfer = None
        nothing = torch.zeros(0, dtype=self.wire.dtype, device=self.wire.device)
        return torch.cat([nothing, *(torch.cat(peer, 1).view(-1) for peer in chunks if peer)])

    def _unexpected_call_order(self) -> BackendUnavailableError:
        """Leave the group, and return the error for an unexpected order of TorchRec's calls."""
        self.wire.group.close()
        return BackendUnavailableError(
            f"torchrec {metadata.version('torchrec')} calls its codecs in an order that tersor does "
            "not know; install torchrec 1.8, or give its sharders no codecs of tersor"
        )

    @abstractmethod
    def _codecs(self, flat: torch.Tensor) -> list[list[Codec]]:
        """Return the codec of each chunk, per destination."""

    @abstractmethod
    def _watch(self) -> Stopwatch:
        """Return the stopwatch of this direction."""

    @abstractmethod
    def _count(self, sent: Sequence[Volume]) -> None:
        """Add the sent volumes to the statistics."""


class ForwardCodec(VariableCodec):
    """Sends looked-up rows; each block has the bound of its table."""

    is_pooled = False

    def __init__(
        self, route: Route, wire: AllToAll, stats: ExchangeStats, channel: str, plan: CodecPlan
    ) -> None:
        super().__init__(route, wire, stats, channel)
        self.plan = plan

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved iteration and saved choices; see ``CodecPlan.load_state_dict``."""
        tables = {block.table for block in self.route.outgoing[0]}
        self.iteration = self.plan.load_state_dict(state, tables)

    def _codecs(self, flat: torch.Tensor) -> list[list[Codec]]:
        own = self.route.outgoing[0]
        if len(self.plan.candidates) > 1 and own:
            columns = flat.view(-1, row_width(own)).split([block.width for block in own], 1)
            # the last feature of a table represents all of them
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
    """Sends pooled rows, whose widths TorchRec passes beforehand."""

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
    """Sends gradients, all with the same codec."""

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
    """A no-op codec: TorchRec sends gradients uncompressed, and the statistics count them.

    TorchRec's own no-op codec lacks the property ``quantized_dtype``, which its planner reads.
    """

    def __init__(self, dtype: torch.dtype, stats: ExchangeStats) -> None:
        self.quantized_dtype, self.stats = dtype, stats

    def create_context(self) -> None:
        """Return no context."""

    def padded_size(
        self, input_tensor: torch.Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: None
    ) -> tuple[int, int]:
        """Return the width of this rank's rows, and 0 for no padding."""
        del dim_per_rank, my_rank, qcomm_ctx
        return input_tensor.shape[-1], 0

    def encode(self, input_tensor: torch.Tensor, ctx: None = None) -> torch.Tensor:
        """Count the tensor and return it unchanged."""
        del ctx
        self.stats.backward.add(Volume(input_tensor.nbytes, input_tensor.nbytes))
        return input_tensor

    def calc_quantized_size(self, input_len: int, ctx: None = None) -> int:
        """Return the length unchanged."""
        del ctx
        return input_len

    def decode(self, input_grad: torch.Tensor, ctx: None = None) -> torch.Tensor:
        """Return the tensor unchanged."""
        del ctx
        return input_grad


class Unattached:
    """A placeholder for a codec until ``attach`` is called on the sharded model."""

    quantized_dtype = torch.uint8

    def __init__(self, is_pooled: bool) -> None:
        self.is_pooled = is_pooled

    def create_context(self) -> None:
        """Raise ``SpecError``: the codecs are not attached to a model."""
        raise SpecError(
            "the codecs do not know the sharded model yet; call attach(model) on them, once, after "
            "DistributedModelParallel"
        )
