"""One rank of a training run: model, exchange, optimizers, and a step of them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from tersor.codecs import Codec
from tersor.codecs.foreign.sz3 import Sz3
from tersor.comm import gathered
from tersor.comm.agreement import first_line
from tersor.errors import ExchangeError, SpecError, TersorError
from tersor.sites.embeddings import Exchange
from tersor.types import Bound
from tersor.workloads.data.clicks import ClickBatch, ClickSource
from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.metrics import ClickMetrics, click_metrics
from tersor.workloads.models.dlrm import Dlrm, place_tables
from tersor.workloads.ranks import lost_peers_explained

_EVAL_BATCH: Final = 8192
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among all of them.

    Where a peer is gone or does not come in time, collective calls raise ``ExchangeError``.
    """

    rank: int
    world_size: int

    @classmethod
    def current(cls) -> Ranks:
        """Return this process's place; one of one without ``torch.distributed``."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls(0, 1)

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order; a collective call."""
        return [value] if self.world_size == 1 else gathered(value, None)

    def together(self, task: Callable[[], _T]) -> _T:
        """Do a task on every rank and return what it gave here; a collective call.

        Raises:
            SpecError: it failed on another rank; says which, and why. Where it failed here, the
                error is its own.
        """
        try:
            result = task()
        except Exception as error:
            # an error of the group would hide the one that is told of
            with suppress(ExchangeError):
                self.gathered(_words_of(error))
            raise
        for rank, failure in enumerate(self.gathered(None)):
            if failure is not None:
                raise SpecError(f"rank {rank} cannot go on: {failure}")
        return result

    def add_up(self, tensor: torch.Tensor) -> None:
        """Add up the tensors of all ranks, in place; a collective call."""
        if self.world_size > 1:
            with lost_peers_explained(self.rank):
                dist.all_reduce(tensor)

    def concatenated(self, own: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, of one shape, in order; a collective call."""
        if self.world_size == 1:
            return own
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        with lost_peers_explained(self.rank):
            dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    def share(self, total: int) -> slice:
        """Return this rank's part of ``total`` samples, which all ranks share evenly."""
        each = total // self.world_size
        return slice(self.rank * each, (self.rank + 1) * each)


def _words_of(error: Exception) -> str:
    """Return what peers are told: the class too, where the message was not written for users."""
    if isinstance(error, TersorError | OSError):
        return str(error)
    name, line = type(error).__name__, first_line(error)
    return line if line == name else f"{name}: {line}"


class DlrmRun:
    """Model and optimizers of one rank; all ranks must step together.

    The loss is the mean over the batch of all ranks, so that the same run on any number of ranks
    takes the same steps up to rounding.

    Attributes:
        run_id: random, the same on all ranks; a run that goes on from a checkpoint keeps its id.
    """

    def __init__(
        self, config: DlrmConfig, source: ClickSource, device: torch.device | str = "cpu"
    ) -> None:
        """Make the model; a collective call.

        Raises:
            SpecError: the batch cannot be shared evenly, or the source has other tables.
        """
        self.config, self.source = config, source
        self.device, self.ranks = torch.device(device), Ranks.current()
        if config.batch % self.ranks.world_size:
            raise SpecError(
                f"a batch of {config.batch} samples is not divisible by {self.ranks.world_size} "
                "ranks; choose another batch"
            )
        if len(source.num_rows) != len(config.shape.num_rows) or any(
            needed > rows
            for needed, rows in zip(source.num_rows, config.shape.num_rows, strict=True)
        ):
            raise SpecError(f"the model has too few rows for the ids of {source.name}")
        self.owners = place_tables(config.shape.num_rows, self.ranks.world_size)
        tables = [t for t, owner in enumerate(self.owners) if owner == self.ranks.rank]
        self.model = Dlrm(config.shape, tables, config.seed).to(self.device)
        self.exchange = self._exchange()
        self.optimizer = self._optimizer()
        self.step_number = 0
        self.run_id = str(self.ranks.gathered(secrets.token_hex(8))[0])

    def _exchange(self) -> Exchange:
        return Exchange(
            self.owners,
            self.config.shape.dim,
            bounds=self.config.bounds,
            codec=_codec(self.config.codec),
            backward=self.config.backward,
            # the losses of all ranks add up to that of the batch
            gradient_division=False,
            bandwidth_gbps=self.config.bandwidth_gbps,
            device=self.device,
        )

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
        """Return the samples of all ranks at a step; a split that ends starts over."""
        size, total = self.config.batch, self.source.num_samples("train")
        if total < size:
            raise SpecError(f"{self.source.name} has {total} training samples, fewer than a batch")
        start = (step % (total // size)) * size
        return self.source.read("train", start, size)

    def step(self, batch: ClickBatch | None = None) -> float:
        """Take one step; return the mean loss of this rank's samples."""
        batch = (self.batch(self.step_number) if batch is None else batch).to(self.device)
        own = self.ranks.share(len(batch))
        logits = self.model(batch, self.exchange, own)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels[own], reduction="none"
        )
        self.optimizer.zero_grad(set_to_none=True)
        (losses.sum() / len(batch)).backward()
        self._sum_dense_gradients()
        # said out loud, or torch warns of its own default at every run with sparse gradients
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            self.optimizer.step()
        self.step_number += 1
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
        """Judge the model on the test split, without compression; the same on every rank."""
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

    def state(self) -> dict[str, torch.Tensor]:
        """Return all that a resumed run needs, by name."""
        found = {f"model/{name}": x for name, x in self.model.state_dict().items()}
        for number, parameter in enumerate(self.model.parameters()):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                found[f"optimizer/{number}/{name}"] = torch.as_tensor(value)
        found["step"] = torch.tensor(self.step_number)
        exchange = json.dumps(self.exchange.state_dict(), sort_keys=True)
        found["exchange"] = torch.tensor(list(exchange.encode()), dtype=torch.uint8)
        return {name: value.detach() for name, value in found.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            SpecError: the state is of another model.
        """
        own = self.model.state_dict()
        wanted = {f"model/{name}" for name in own}
        if wanted != {name for name in state if name.startswith("model/")}:
            raise SpecError("the checkpoint is of another model or number of ranks")
        self.model.load_state_dict({name: state[f"model/{name}"] for name in own})
        for number, parameter in enumerate(self.model.parameters()):
            prefix = f"optimizer/{number}/"
            values: dict[str, Any] = {
                name.removeprefix(prefix): value.to(parameter.device) if value.dim() else value
                for name, value in state.items()
                if name.startswith(prefix)
            }
            if values:
                self.optimizer.state[parameter].update(values)
        self.step_number = int(state["step"])
        if "exchange" in state:
            self.exchange.load_state_dict(json.loads(bytes(state["exchange"].tolist())))
        else:
            # a checkpoint of before it held more of the exchange
            self.exchange.iteration = int(state["iteration"])


def _codec(name: str) -> str | Codec:
    """Return SZ3 without prediction, its best way with looked-up rows; other names stay as they are."""
    if name != Sz3.codec_id:
        return name
    # where it is absent, a run stops before its first step
    Sz3.library()
    return Sz3(bound=Bound.relative(1.0), algorithm="nopred")
