"""The compressed all-to-all of embedding rows, and of their gradients in the opposite direction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import torch
import torch.distributed as dist

from tersor.codecs.codec import Codec
from tersor.comm.agreement import (
    check_same_everywhere,
    failure_announced,
    gathered,
    is_distributed,
)
from tersor.comm.all_to_all import AllToAll
from tersor.errors import ExchangeError, SpecError
from tersor.sites.embeddings.layout import TableLayout, check_batches, even_batches
from tersor.sites.embeddings.plan import BoundsArgument, make_backward, make_codec, make_plan
from tersor.sites.embeddings.round import ExchangeRound, Sending, Start, Wait
from tersor.sites.embeddings.stats import ExchangeStats
from tersor.warm_up import compile_lists

_CHANNELS: Final = ("forward", "backward")
_EXACT_CHANNELS: Final = ("uncompressed forward", "uncompressed backward")


class Exchange:
    """A compressed all-to-all that sends looked-up rows to the ranks of their samples, and gradients back.

    Every rank looks up its own tables for the whole batch, [global batch, width] each, with samples ordered by rank.
    ``start`` returns immediately, and ``Pending.wait`` returns the rows of all tables for this rank's own samples.
    Gradients pass straight through the quantization of rows (straight-through estimator).

    All ranks must create and use the exchange in the same order, with the same arguments. Any error ends it on every
    rank, after which they have to create a new one. As a context manager, it is closed at the end of the block, and an
    error inside the block ends it on every rank at once.

    Creating an exchange is a collective call. It compiles the kernels that the exchange needs, unless this machine has
    compiled them before.

    Args:
        owners: the rank that owns each table.
        widths: values per row, for all tables or for each.
        names: table names, for bounds by name; None for the table numbers.
        bounds: error bounds of the forward direction. Either a policy; one bound for all tables, where a number is a
            relative bound; a dictionary of bounds by table number or name, with ``"default"`` for all other tables; or
            None for the default classes without decay.
        codec: codec of the forward direction: an id, a codec, or ``"auto"`` to choose per table by predicted time, from
            speeds measured on a CPU or from the costs of a GPU. ``bounds`` take precedence over a codec's own bound,
            and are required if it has one.
        backward: codec of the gradients: ``"none"`` to send them uncompressed, ``"half"``, ``"group8"``, or any other
            id or codec. A codec with a bound must be given as an object.
        gradient_division: divide the gradients of the rows by the number of ranks, as TorchRec does. Use it if the
            loss of each rank is the mean over its own samples and dense gradients are averaged, as in
            ``DistributedDataParallel``. Turn it off if the losses of all ranks add up to the loss of the batch.
        bandwidth_gbit_s: bandwidth of the network for ``"auto"``, in 10**9 bits per second; None for 10.
        group: the process group; None for all ranks. Without ``torch.distributed`` there is a single rank, whose rows
            are encoded and decoded but not sent.
        device: device of the tensors.
        dtype: dtype of rows and gradients.
        bandwidth_gbps: deprecated: the bandwidth in 10**9 bytes per second.

    Raises:
        SpecError: the arguments are invalid, or differ between ranks.
        ExchangeError: a rank could not connect.

    Attributes:
        iteration: number of compressed exchanges so far, by which bounds decay.
        stats: what this rank has sent in them.
    """

    def __init__(
        self,
        owners: Sequence[int],
        widths: int | Sequence[int],
        *,
        names: Sequence[str] | None = None,
        bounds: BoundsArgument = None,
        codec: str | Codec = "rows",
        backward: str | Codec = "half",
        gradient_division: bool = True,
        bandwidth_gbit_s: float | None = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        bandwidth_gbps: float | None = None,
    ) -> None:
        """Check that all ranks pass the same arguments, and connect them. This is a collective call."""
        self.is_distributed = is_distributed()
        self.rank = dist.get_rank(group) if self.is_distributed else 0
        self.world_size = dist.get_world_size(group) if self.is_distributed else 1
        with failure_announced(group):
            self.device, self.dtype = torch.device(device), dtype
            each = [widths] * len(owners) if isinstance(widths, int) else list(widths)
            named = range(len(owners)) if names is None else names
            self.layout = TableLayout(tuple(owners), tuple(each), tuple(map(str, named)))
            self.layout.check(self.world_size)
            self.plan = make_plan(
                codec, bounds, self.layout.names, self.device,
                bandwidth_gbit_s=bandwidth_gbit_s, bandwidth_gbps=bandwidth_gbps,
            )  # fmt: skip
            self._exact = make_codec("raw", self.device)
            self.backward_codec = (
                self._exact if backward == "none" else make_backward(backward, self.device)
            )
            self.gradient_division = bool(gradient_division)
            formats = (*self.plan.candidates, self.backward_codec, self._exact)
            for one in formats:
                one.check_supported(dtype)
            compile_lists(formats, self.dtype, self.device)
        self.tables = self.layout.of(self.rank)
        self.iteration = 0
        self.stats = ExchangeStats(names=self.layout.names)
        self._parent = group
        self._num_started = 0
        self._compresses = True
        self._is_closed = False
        self.wire: AllToAll | None = None
        if self.is_distributed:
            check_same_everywhere(self._terms(), "exchange", group)
            channels = (*_CHANNELS, *_EXACT_CHANNELS)
            self.wire = AllToAll(group, formats, dtype, self.device, channels)

    def __repr__(self) -> str:
        """Return the number of tables and ranks, and the codecs of both directions."""
        codecs = ", ".join(one.codec_id for one in self.plan.candidates)
        return (
            f"Exchange({len(self.layout.owners)} tables, rank {self.rank} of {self.world_size}, rows by {codecs}, gradients by "
            f"{self.backward_codec.codec_id}{', closed' * self._is_closed})"
        )

    def _terms(self) -> dict[str, object]:
        """Return the arguments that must be equal on all ranks, by name."""
        return {
            "owners": self.layout.owners,
            "widths": self.layout.widths,
            "names": self.layout.names,
            **self.plan.terms(),
            "backward": self.backward_codec,
            "gradient_division": self.gradient_division,
            "dtype": self.dtype,
        }

    def close(self) -> None:
        """Leave the group of the exchange, which cannot be used afterwards."""
        self._is_closed = True
        if self.wire is not None:
            self.wire.group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ends_well = isinstance(error, SystemExit) and not error.code
        if error is not None and not ends_well and self.wire is not None:
            self.wire.group.abort(error)
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to resume training, as JSON-ready values.

        It consists of the iteration, the decay, and the choices of ``"auto"`` with the speeds behind them. It covers
        only the tables of this rank, so every rank must save its own.
        """
        return self.plan.state_dict(self.iteration)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the iteration, bounds and codecs of a saved state.

        Raises:
            SpecError: ``state`` is malformed, or belongs to an exchange with another ``codec``.
        """
        self.iteration = self.plan.load_state_dict(state, self.tables)

    def reset_stats(self) -> ExchangeStats:
        """Return the statistics so far and reset them."""
        stats, self.stats = self.stats, ExchangeStats(names=self.layout.names)
        return stats

    def stats_of_all_ranks(self) -> ExchangeStats:
        """Return the merged statistics of all ranks. This is a collective call; see ``ExchangeStats.merged``."""
        own = self.stats.to_dict()
        every = gathered(own, self._parent) if self.is_distributed else [own]
        found = ExchangeStats.merged([ExchangeStats.from_dict(one) for one in every])
        found.names = self.layout.names
        return found

    @contextmanager
    def uncompressed(self) -> Iterator[None]:
        """Send rows and gradients uncompressed inside the block, as in ``with exchange.uncompressed():``.

        This is for evaluation: such exchanges count neither as iterations, by which bounds decay, nor in ``stats``. All
        ranks must enter the block together.
        """
        before, self._compresses = self._compresses, False
        try:
            yield
        finally:
            self._compresses = before

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Abort the exchange on all peers if the block raises, and disable autocast, which would change what is sent."""
        if self._is_closed:
            raise ExchangeError("this exchange failed or was closed before; make a new one")
        leaving = nullcontext() if self.wire is None else self.wire.group.abort_on_error()
        with leaving, torch.autocast(self.device.type, enabled=False):
            yield

    def start(self, rows: Sequence[torch.Tensor], batches: Sequence[int] | None = None) -> Pending:
        """Encode this rank's tables and start sending them.

        Args:
            rows: looked-up rows of each of this rank's tables, [global batch, width].
            batches: number of samples of each rank; None splits the global batch evenly.

        Raises:
            SpecError: shapes, dtype or device do not fit.
            ExchangeError: a peer failed.
            CorruptDataError: a peer announced impossible sizes.
        """
        with self.guarded():
            self._check_rows(rows)
            if batches is None:
                total = rows[0].shape[0] if rows else None
                batches = even_batches(total, self.world_size)
            batches = list(batches)
            check_batches(batches, [x.shape[0] for x in rows], self.world_size)
            return self._started(rows, [batches] * len(rows), batches[self.rank])

    def start_sequences(
        self, rows: Sequence[torch.Tensor], counts: Sequence[Sequence[int]]
    ) -> Pending:
        """Encode unpooled rows, one per id of a sample, and start sending them.

        ``Pending.wait`` then returns each table's rows for this rank's samples, as many as its owner sent. The caller
        can assign them to samples by the ids, which were exchanged before the look-up.

        Args:
            rows: looked-up rows of each of this rank's tables, [ids of the global batch, width], ordered by rank.
            counts: for each own table, the number of its rows for each rank.

        Raises:
            SpecError: shapes, dtype or device do not fit.
            ExchangeError: a peer failed.
            CorruptDataError: a peer announced impossible sizes.
        """
        with self.guarded():
            self._check_rows(rows)
            self._check_counts(rows, counts)
            return self._started(rows, counts, None)

    def _check_counts(self, rows: Sequence[torch.Tensor], counts: Sequence[Sequence[int]]) -> None:
        if len(counts) != len(rows):
            raise SpecError(f"{len(rows)} tables need as many counts, not {len(counts)}")
        for table, x, split in zip(self.tables, rows, counts, strict=True):
            if len(split) != self.world_size or min(split) < 0 or sum(split) != x.shape[0]:
                raise SpecError(
                    f"counts of table {self.layout.names[table]} must be {self.world_size} numbers that add up to its "
                    f"{x.shape[0]} rows, not {list(split)}"
                )

    def _started(
        self,
        rows: Sequence[torch.Tensor],
        splits: Sequence[Sequence[int]],
        num_rows: int | None,
    ) -> Pending:
        iteration, sending = self.iteration, self._sending(rows)
        # copied for backward: by then, the caller may have reused its lists for the next batch
        own = [[int(count) for count in split] for split in splits]
        slot = ExchangeRound(self, own, num_rows, (self._num_started, iteration), sending)
        self._num_started += 1
        anchor = torch.zeros((), device=self.device, requires_grad=torch.is_grad_enabled())
        start: Any = Start.apply
        return Pending(slot, start(slot, anchor, *rows))

    def _sending(self, rows: Sequence[torch.Tensor]) -> Sending:
        """Choose codecs and statistics for the exchange that is about to start, and count it."""
        if not self._compresses:
            exact = [self._exact] * len(rows)
            return Sending(exact, self._exact, _EXACT_CHANNELS, ExchangeStats())
        self.plan.remeasure_if_due(self.tables, rows, self.iteration)
        codecs = [self.plan.codec(table, self.iteration) for table in self.tables]
        self.iteration += 1
        self.stats.num_exchanges += 1
        return Sending(codecs, self.backward_codec, _CHANNELS, self.stats)

    def _check_rows(self, rows: Sequence[torch.Tensor]) -> None:
        if len(rows) != len(self.tables):
            raise SpecError(f"rank {self.rank} owns {len(self.tables)} tables, not {len(rows)}")
        for table, x in zip(self.tables, rows, strict=True):
            width = self.layout.widths[table]
            if x.dim() != 2 or x.shape[1] != width or x.dtype != self.dtype:
                raise SpecError(
                    f"rows of table {self.layout.names[table]} must be {self.dtype} of shape "
                    f"[batch, {width}], not {x.dtype} of shape {tuple(x.shape)}"
                )
            if x.device.type != self.device.type:
                name = self.layout.names[table]
                raise SpecError(f"rows of table {name} must be on {self.device}, not {x.device}")

    def __call__(
        self, rows: Sequence[torch.Tensor], batches: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """Send and wait; see ``start`` and ``Pending.wait``."""
        return self.start(rows, batches).wait()


@dataclass(frozen=True, slots=True)
class Pending:
    """A forward exchange in flight."""

    _slot: ExchangeRound
    _token: torch.Tensor
    _rows: list[torch.Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    def wait(self) -> list[torch.Tensor]:
        """Wait for the rows of all tables for this rank's samples, [local batch, width] each.

        Repeated calls return the same tensors, because gradients are sent back only once.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent malformed payloads.
        """
        if not self._rows:
            wait: Any = Wait.apply
            with self._slot.exchange.guarded():
                self._rows.extend(wait(self._slot, self._token))
        return list(self._rows)
