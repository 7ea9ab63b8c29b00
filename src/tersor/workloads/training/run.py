"""One rank of a training, as the loop, the log and checkpoints see it."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
import xxhash

from tersor.errors import SpecError
from tersor.sites.activations import Compression
from tersor.workloads.ranks import Ranks
from tersor.workloads.training.activations import (
    ActivationOptions,
    BalancedActivations,
    activation_values,
    compression_state,
    load_compression_state,
)
from tersor.workloads.training.config import TrainingConfig
from tersor.workloads.training.judgement import Outcome
from tersor.workloads.training.learning_rate import LearningRate
from tersor.workloads.training.shards import own_part, sharded_like


class Metrics(Protocol):
    """How good a model is on its test samples."""

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form: numbers by name."""


BatchT = TypeVar("BatchT")
MetricsT = TypeVar("MetricsT", bound=Metrics)


class TrainingRun(ABC, Generic[BatchT, MetricsT]):
    """One rank of a training; all ranks must step together.

    A training derives from it, makes ``model`` and ``optimizer``, and defines ``batch``, ``take_step``
    and ``evaluate``. Training is then bit for bit the same whether it is resumed or not: batch, learning
    rate and random numbers of a step depend on its number alone.

    Attributes:
        config: what the training was told.
        data_name: of the samples; a checkpoint of other ones is refused.
        device: of the model.
        ranks: this process among all of them.
        model: the part of it that this rank holds.
        optimizer: of the model's parameters.
        learning_rate: of each step; constant unless a training sets another.
        step_number: steps taken so far.
        run_id: random, the same on all ranks; a run that goes on from a checkpoint keeps its id.
        activations: compresses what forward passes save, where a training enters ``saving``; None for none.
        totals_kind: what the line that ends a log is called.
    """

    totals_kind: ClassVar[str] = "end"
    activations: Compression | None = None
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(
        self, config: TrainingConfig, data_name: str, device: torch.device | str = "cpu"
    ) -> None:
        """Take up a training at its first step; a collective call.

        Raises:
            SpecError: the batch cannot be shared evenly.
        """
        self.config, self.data_name = config, data_name
        self.device, self.ranks = torch.device(device), Ranks.current()
        if config.batch % self.ranks.world_size:
            raise SpecError(
                f"a batch of {config.batch} samples is not divisible by {self.ranks.world_size} "
                "ranks; choose another batch"
            )
        self.learning_rate = LearningRate(config.learning_rate)
        self._activation_options: ActivationOptions | None = None
        self._loss: Callable[[BatchT], torch.Tensor]
        self.step_number = 0
        self.run_id = str(self.ranks.gathered(secrets.token_hex(8))[0])

    @abstractmethod
    def batch(self, step: int) -> BatchT:
        """Return the samples of a step: of all ranks, or this rank's share, as ``take_step`` wants them."""

    @abstractmethod
    def take_step(self, batch: BatchT) -> float:
        """Compute gradients and change the weights; return the mean loss of this rank's samples."""

    @abstractmethod
    def evaluate(self, max_samples: int | None = None) -> MetricsT:
        """Judge the model on its test samples; the same on every rank, a collective call."""

    def step(self, batch: BatchT | None = None) -> float:
        """Take the next step; return the mean loss of this rank's samples."""
        batch = self.batch(self.step_number) if batch is None else batch
        torch.manual_seed(_step_seed(self.config.seed, self.step_number, self.ranks.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate.at(self.step_number)
        loss = self.take_step(batch)
        self.step_number += 1
        return loss

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the weights that the optimizer changes, in the order of the model's."""
        return list(self.model.parameters())

    def compress_activations(
        self, options: ActivationOptions | None, loss: Callable[[BatchT], torch.Tensor]
    ) -> None:
        """Compress what forward passes save, as options say.

        Args:
            options: None for not at all.
            loss: of a batch, computed inside ``saving``; what gradients are compared by.
        """
        if options is not None:
            self.activations = options.compression()
            self._activation_options, self._loss = options, loss

    def balance_activations(self, batch: BatchT) -> None:
        """Balance the levels of the model's parts by the batch of the next step, if that is due; a collective call."""
        options = self._activation_options
        if self.activations is None or not isinstance(options, BalancedActivations):
            return
        if options.is_due(self.step_number):
            self.activations.balance(self.model, lambda: self._loss(batch), parts=options.parts)

    def saving(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass, without the loss, in which saved tensors shrink."""
        return nullcontext() if self.activations is None else self.activations

    def close(self) -> None:
        """Leave the groups of ranks that the training has made."""

    def step_values(self, seconds: float) -> dict[str, float]:
        """Return what a line about the loss says besides it: by default about compressed activations.

        Args:
            seconds: per step, the mean since the last line.
        """
        del seconds
        return {} if self.activations is None else activation_values(self.activations)

    def totals(self) -> dict[str, Any]:
        """Return what all steps and ranks add up to, for the line that ends a log; a collective call.

        By default what the last step saved for backward, where that was compressed.
        """
        return (
            {}
            if self.activations is None
            else {"activations": self.activations.report().to_config()}
        )

    def outcome(self, name: str, metrics: MetricsT, lines: list[dict[str, Any]]) -> Outcome:
        """Return what the run came to, for a comparison; a collective call."""
        return Outcome(
            name, metrics.to_config(), lines, self.config.steps, config=self.config.to_config(),
            data_name=self.data_name, ranks=self.ranks.world_size,
        )  # fmt: skip

    def counters(self) -> dict[str, Any]:
        """Return what this rank has counted, as JSON; a checkpoint has it beside the state.

        Not in the state: that is the same for equal runs, and times are not.
        """
        return {}

    def load_counters(self, values: Mapping[str, Any] | None) -> None:
        """Go on from the counters of a checkpoint, or from zero where it has none.

        Raises:
            ValueError: these are no such counters.
        """

    def uncounted(self) -> str | None:
        """Say what the counters of a resumed run lack; None if nothing."""
        return None

    def state(self) -> dict[str, torch.Tensor]:
        """Return all that this rank needs to be resumed, by name; of sharded tensors its own part."""
        found = {f"model/{name}": x for name, x in self.model.state_dict().items()}
        for number, parameter in enumerate(self.trained()):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                found[f"optimizer/{number}/{name}"] = torch.as_tensor(value)
        found["step"] = torch.tensor(self.step_number)
        if self.activations is not None:
            found["activations"] = compression_state(self.activations)
        return {name: own_part(value.detach()) for name, value in found.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            SpecError: the state is of another model.
        """
        own = self.model.state_dict()
        wanted = {f"model/{name}" for name in own}
        if wanted != {name for name in state if name.startswith("model/")}:
            raise SpecError("the checkpoint is of another model or number of ranks")
        self.model.load_state_dict(
            {
                name: sharded_like(state[f"model/{name}"].to(value.device), value)
                for name, value in own.items()
            }
        )
        # only a fused optimizer counts its steps, which have no axes, on the device
        is_fused = bool(self.optimizer.defaults.get("fused"))
        for number, parameter in enumerate(self.trained()):
            prefix = f"optimizer/{number}/"
            values: dict[str, Any] = {
                name.removeprefix(prefix): sharded_like(
                    value.to(parameter.device if value.dim() or is_fused else "cpu"), parameter
                )
                for name, value in state.items()
                if name.startswith(prefix)
            }
            if values:
                self.optimizer.state[parameter].update(values)
        if self.activations is not None:
            load_compression_state(self.activations, state.get("activations"))
        self.step_number = int(state["step"])


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a step: no generator's state needs to be saved then."""
    return xxhash.xxh3_64_intdigest(f"{seed} {step} {rank}".encode())
