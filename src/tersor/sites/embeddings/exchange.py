"""The compressed all-to-all: tables in, samples out, and gradients the way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tersor.codecs.codec import Codec
from tersor.errors import SpecError
from tersor.policy import AdaptiveBounds
from tersor.sites.embeddings.agreement import check_same_everywhere, tell_of_failure
from tersor.sites.embeddings.layout import TableLayout, check_batches, even_batches
from tersor.sites.embeddings.passage import Passage, Start, Wait
from tersor.sites.embeddings.plan import (
    CANDIDATES,
    CodecPlan,
    as_policy,
    check_bound_is_used,
    make_backward,
    make_codec,
)
from tersor.sites.embeddings.stats import ExchangeStats
from tersor.sites.embeddings.wire import Wire
from tersor.types import Bound


class Exchange:
    """Sends looked-up rows to the ranks of their samples, compressed, and gradients back.

    Every rank looks up its own tables for the whole batch, [global batch, width] each, samples ordered
    by rank; ``start`` returns at once, and ``Pending.wait`` gives all tables for this rank's own
    samples. The gradient of the rows passes straight through quantization.

    All ranks must make the exchange, and use it, in the same order and with the same arguments. An
    error of any kind ends it on every rank; they then make a new one.
    """

    def __init__(
        self,
        owners: Sequence[int],
        widths: int | Sequence[int],
        *,
        bounds: AdaptiveBounds | Bound | float | None = None,
        codec: str | Codec = "rows",
        backward: str | Codec = "half",
        bandwidth_gbps: float = 1.25,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Agree with the other ranks on what will be sent; a collective call.

        Args:
            owners: the rank that owns each table.
            widths: values per row, of all tables or of each.
            bounds: error bounds of the forward direction: a policy, one bound for all tables, or a
                relative bound as a number; the default classes without decay if None.
            codec: of the forward direction: an id, a codec, or ``"auto"`` to choose per table by
                measured speed. ``bounds`` go before the bound of a codec, which needs them.
            backward: of the gradients: ``"none"`` sends them as they are; ``"half"``, ``"group8"``,
                or any other id or codec; one that keeps a bound must bring it.
            bandwidth_gbps: of the network, 10**9 bytes per second, for ``"auto"``.
            group: the ranks that take part, all if None. Without ``torch.distributed`` there is one
                rank: rows are encoded and decoded, and go nowhere.
            device: where the tensors are.
            dtype: of rows and gradients.

        Raises:
            SpecError: the arguments contradict each other, or those of another rank.
            ExchangeError: a rank could not connect.
        """
        self.is_distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if self.is_distributed else 0
        self.world_size = dist.get_world_size(group) if self.is_distributed else 1
        try:
            self.device, self.dtype = torch.device(device), dtype
            each = [widths] * len(owners) if isinstance(widths, int) else list(widths)
            self.layout = TableLayout(tuple(owners), tuple(each))
            self._choose_codecs(codec, backward, bounds, bandwidth_gbps)
        except Exception:
            if self.is_distributed:
                tell_of_failure(group)
            raise
        self.tables = self.layout.of(self.rank)
        self.iteration = 0
        self.stats = ExchangeStats()
        self.wire: Wire | None = None
        if self.is_distributed:
            own = repr((self.layout, self.plan.terms(), self.backward_codec, str(dtype)))
            check_same_everywhere(own, "exchange", group)
            formats = [*self.plan.candidates, self.backward_codec]
            self.wire = Wire(group, formats, dtype, self.device)

    def _choose_codecs(
        self,
        codec: str | Codec,
        backward: str | Codec,
        bounds: AdaptiveBounds | Bound | float | None,
        bandwidth_gbps: float,
    ) -> None:
        """Make the codecs of both directions; refuse what cannot send the tables."""
        self.layout.check(self.world_size)
        names = CANDIDATES if codec == "auto" else (codec,)
        candidates = tuple(make_codec(name, self.device) for name in names)
        check_bound_is_used(codec, bounds)
        policy = as_policy(bounds)
        if isinstance(policy, AdaptiveBounds):
            self.layout.check_named(policy.tight | policy.loose)
        self.plan = CodecPlan(candidates, policy, bandwidth_gbps)
        self.backward_codec = make_backward("raw" if backward == "none" else backward, self.device)
        for one in (*candidates, self.backward_codec):
            one.check_supported(self.dtype)

    def close(self) -> None:
        """Leave the group of the exchange; it cannot be used any more."""
        if self.wire is not None:
            self.wire.close()

    def reset_stats(self) -> ExchangeStats:
        """Return the statistics so far and start anew."""
        stats, self.stats = self.stats, ExchangeStats()
        return stats

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let no peer wait for this rank if it fails, and autocast change nothing that is sent."""
        leaving = nullcontext() if self.wire is None else self.wire.left_on_error()
        with leaving, torch.autocast(self.device.type, enabled=False):
            yield

    def start(self, rows: Sequence[torch.Tensor], batches: Sequence[int] | None = None) -> Pending:
        """Encode this rank's tables and start to send them.

        Args:
            rows: of each of this rank's tables, [global batch, width].
            batches: samples of each rank; if None, the global batch is split evenly.

        Raises:
            SpecError: shapes, dtype or device do not fit.
            ExchangeError: a peer failed.
            CorruptDataError: a peer announced what cannot be.
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
        """Encode rows that are not pooled, as many per sample as it has ids, and start to send them.

        ``Pending.wait`` then gives each table's rows for this rank's samples, as many as its owner
        sent; how they belong to samples is known from the ids, which travel before the look-up.

        Args:
            rows: of each of this rank's tables, [ids of the global batch, width], ordered by rank.
            counts: per own table, how many of its rows go to each rank.

        Raises:
            SpecError: shapes, dtype or device do not fit.
            ExchangeError: a peer failed.
            CorruptDataError: a peer announced what cannot be.
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
                    f"counts of table {table} must be {self.world_size} numbers that add up to its "
                    f"{x.shape[0]} rows, not {list(split)}"
                )

    def _started(
        self,
        rows: Sequence[torch.Tensor],
        splits: Sequence[Sequence[int]],
        num_rows: int | None,
    ) -> Pending:
        self.plan.look(self.tables, rows, self.iteration)
        # of its own: backward needs them, when the caller's may hold the next batch
        own = [[int(count) for count in split] for split in splits]
        slot = Passage(self, own, num_rows, self.iteration)
        self.iteration += 1
        self.stats.num_exchanges += 1
        anchor = torch.zeros((), device=self.device, requires_grad=torch.is_grad_enabled())
        start: Any = Start.apply
        return Pending(slot, start(slot, anchor, *rows))

    def _check_rows(self, rows: Sequence[torch.Tensor]) -> None:
        if len(rows) != len(self.tables):
            raise SpecError(f"rank {self.rank} owns {len(self.tables)} tables, not {len(rows)}")
        for table, x in zip(self.tables, rows, strict=True):
            width = self.layout.widths[table]
            if x.dim() != 2 or x.shape[1] != width or x.dtype != self.dtype:
                raise SpecError(
                    f"rows of table {table} must be {self.dtype} of shape [batch, {width}], "
                    f"not {x.dtype} of shape {tuple(x.shape)}"
                )
            if x.device.type != self.device.type:
                raise SpecError(f"rows of table {table} must be on {self.device}, not {x.device}")

    def __call__(
        self, rows: Sequence[torch.Tensor], batches: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """Send and wait at once; see ``start`` and ``Pending.wait``."""
        return self.start(rows, batches).wait()


@dataclass(frozen=True, slots=True)
class Pending:
    """Rows on their way."""

    _slot: Passage
    _token: torch.Tensor
    _rows: list[torch.Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    def wait(self) -> list[torch.Tensor]:
        """Return the rows of all tables for this rank's samples, [local batch, width] each.

        The same tensors every time: they came once, and their gradients go back once.

        Raises:
            ExchangeError: a peer failed.
            CorruptDataError: a peer sent bytes that are no payload.
        """
        if not self._rows:
            wait: Any = Wait.apply
            with self._slot.exchange.guarded():
                self._rows.extend(wait(self._slot, self._token))
        return list(self._rows)
