"""One rank of a training run: model, exchange, optimizer and training step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from tersor.codecs import Codec
from tersor.codecs.foreign.sz3 import Sz3
from tersor.errors import SpecError
from tersor.sites.embeddings import Exchange, ExchangeStats
from tersor.types import Bound
from tersor.workloads.data.clicks import ClickBatch, ClickSource
from tersor.workloads.dlrm.comparison import DlrmOutcome
from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.metrics import ClickMetrics, click_metrics
from tersor.workloads.models.dlrm import Dlrm, place_tables
from tersor.workloads.training.run import TrainingRun

_EVAL_BATCH: Final = 8192


class DlrmRun(TrainingRun[ClickBatch, ClickMetrics]):
    """Model and optimizer of one rank; all ranks must step together.

    Gradients are those of the mean loss over the batch of all ranks, so a run takes the same steps, up to
    rounding, for any number of ranks.
    """

    totals_kind = "exchange"
    config: DlrmConfig
    model: Dlrm

    def __init__(
        self, config: DlrmConfig, source: ClickSource, device: torch.device | str = "cpu"
    ) -> None:
        """Create the model; a collective call.

        Raises:
            SpecError: the batch cannot be shared evenly, or the tables do not fit the source.
        """
        super().__init__(config, source.name, device)
        self.source = source
        if len(source.num_rows) != len(config.shape.num_rows) or any(
            needed > rows
            for needed, rows in zip(source.num_rows, config.shape.num_rows, strict=True)
        ):
            raise SpecError(f"the model has too few rows for the ids of {source.name}")
        self.owners = place_tables(config.shape.num_rows, self.ranks.world_size)
        tables = [t for t, owner in enumerate(self.owners) if owner == self.ranks.rank]
        self.model = Dlrm(config.shape, tables, config.seed).to(self.device)
        self.exchange = Exchange(
            self.owners,
            config.shape.dim,
            bounds=config.bounds,
            codec=_codec(config.codec),
            backward=config.backward,
            # the losses of all ranks sum to that of the batch
            gradient_division=False,
            bandwidth_gbit_s=config.bandwidth_gbit_s,
            device=self.device,
        )
        self.optimizer = self._optimizer()

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters, rate = list(self.model.parameters()), self.config.learning_rate
        if not parameters:
            parameters = [torch.nn.Parameter(torch.zeros(1))]
        if self.config.optimizer == "adagrad":
            return torch.optim.Adagrad(parameters, lr=rate)
        return torch.optim.SGD(parameters, lr=rate)

    def close(self) -> None:
        """Leave the group of the exchange."""
        self.exchange.close()

    def batch(self, step: int) -> ClickBatch:
        """Return the samples of all ranks at a step; the training split is repeated as needed."""
        size, total = self.config.batch, self.source.num_samples("train")
        if total < size:
            raise SpecError(f"{self.source.name} has {total} training samples, fewer than a batch")
        start = (step % (total // size)) * size
        return self.source.read("train", start, size)

    def take_step(self, batch: ClickBatch) -> float:
        """Compute gradients and update the weights; return the mean loss of this rank's samples."""
        batch = batch.to(self.device)
        own = self.ranks.share(len(batch))
        logits = self.model(batch, self.exchange, own)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels[own], reduction="none"
        )
        self.optimizer.zero_grad(set_to_none=True)
        (losses.sum() / len(batch)).backward()
        self._sum_dense_gradients()
        # explicit, because torch otherwise warns about its default in every run with sparse gradients
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            self.optimizer.step()
        return float(losses.detach().mean())

    def _sum_dense_gradients(self) -> None:
        if self.ranks.world_size == 1:
            return
        gradients = [p.grad for p in self.model.dense_parameters() if p.grad is not None]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        self.ranks.add_up(flat)
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    def evaluate(self, max_samples: int | None = None) -> ClickMetrics:
        """Evaluate the model on the test split, without compression; the result is the same on every rank."""
        logits, labels = [], []
        with torch.no_grad(), self.exchange.uncompressed():
            for batch in self._test_batches(max_samples):
                own = self.ranks.share(len(batch))
                logits.append(self.ranks.concatenated(self.model(batch, self.exchange, own)))
                labels.append(batch.labels)
        return click_metrics(torch.cat(logits), torch.cat(labels))

    def _test_batches(self, max_samples: int | None) -> Iterator[ClickBatch]:
        total = self.source.num_samples("test")
        total = total if max_samples is None else min(total, max_samples)
        total -= total % self.ranks.world_size
        size = _EVAL_BATCH - _EVAL_BATCH % self.ranks.world_size
        for start in range(0, total, size):
            yield self.source.read("test", start, min(size, total - start)).to(self.device)

    def totals(self) -> dict[str, Any]:
        """Return the bytes that all ranks have sent, and the seconds of this rank; a collective call.

        The seconds are local because the step times in a log are local too.
        """
        own, found = self.exchange.stats, self.exchange.stats_of_all_ranks()
        found.forward_times, found.backward_times = own.forward_times, own.backward_times
        return found.to_dict()

    def outcome(self, name: str, metrics: ClickMetrics, lines: list[dict[str, Any]]) -> DlrmOutcome:
        """Return the outcome of the run, with the times of the slowest rank; a collective call."""
        stats = self.exchange.stats_of_all_ranks()
        directions = {
            "forward": (stats.forward, dict(stats.forward_times.read())),
            "backward": (stats.backward, dict(stats.backward_times.read())),
        }
        return DlrmOutcome(
            name, metrics.to_config(), lines, self.config.steps, directions,
            dict(sorted(stats.tables.items())), config=self.config.to_config(),
            data_name=self.data_name, ranks=self.ranks.world_size,
        )  # fmt: skip

    def counters(self) -> dict[str, Any]:
        """Return the statistics of this rank's exchanges."""
        return self.exchange.stats.to_dict()

    def load_counters(self, values: Mapping[str, Any] | None) -> None:
        """Continue from the statistics of a checkpoint, or from zero if it has none."""
        self.exchange.stats = ExchangeStats() if values is None else ExchangeStats.from_dict(values)

    def uncounted(self) -> str | None:
        """Return a note on steps missing from the statistics of a resumed run; None if none are."""
        unknown = self.step_number - self.exchange.stats.num_exchanges
        if not unknown:
            return None
        return (
            f"its checkpoint does not know what its first {unknown} steps sent; bytes, ratios and "
            "times are of later ones"
        )

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state that a resumed run needs, by name."""
        exchange = json.dumps(self.exchange.state_dict(), sort_keys=True)
        packed = torch.tensor(list(exchange.encode()), dtype=torch.uint8)
        return {**super().state(), "exchange": packed}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from ``state``.

        Raises:
            SpecError: the state is from another model.
        """
        super().load_state(state)
        if "exchange" in state:
            self.exchange.load_state_dict(json.loads(bytes(state["exchange"].tolist())))
        else:
            # an older checkpoint holds only the iteration of the exchange
            self.exchange.iteration = int(state["iteration"])


def _codec(name: str) -> str | Codec:
    """Return SZ3 without prediction, which suits looked-up rows best; other names are returned unchanged."""
    if name != Sz3.codec_id:
        return name
    # raises here if the library is missing, before the first step
    Sz3.library()
    return Sz3(bound=Bound.relative(1.0), algorithm="nopred")
