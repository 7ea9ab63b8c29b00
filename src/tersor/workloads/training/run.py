"""Base class for one rank of a training, as used by the loop, the log and checkpoints."""

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
    balance_values,
    json_of,
    json_tensor,
    load_compression_state,
    probe_values,
)
from tersor.workloads.training.config import TrainingConfig
from tersor.workloads.training.judgement import Outcome
from tersor.workloads.training.learning_rate import LearningRate
from tersor.workloads.training.shards import own_part, sharded_like


class Metrics(Protocol):
    """Quality of a model on its test samples."""

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, numbers by name."""


BatchT = TypeVar("BatchT")
MetricsT = TypeVar("MetricsT", bound=Metrics)


class TrainingRun(ABC, Generic[BatchT, MetricsT]):
    """One rank of a training; all ranks must step together.

    A subclass creates ``model`` and ``optimizer``, and defines ``batch``, ``take_step`` and ``evaluate``.
    Batch, learning rate and random numbers of a step depend only on its number, so a resumed training is
    bit-identical to an uninterrupted one.

    Attributes:
        config: of the training.
        data_name: name of the data; checkpoints of other data are rejected.
        device: of the model.
        ranks: rank of this process, and collective calls.
        model: the part of the model that this rank holds.
        optimizer: of the model's parameters.
        learning_rate: schedule of the learning rate; constant unless a subclass replaces it.
        step_number: steps taken so far.
        run_id: random, the same on all ranks; a resumed run has the id of its checkpoint.
        activations: compresses tensors saved inside the context ``saving``; None to disable it.
        totals_kind: kind of the last line of a log.
    """

    totals_kind: ClassVar[str] = "end"
    activations: Compression | None = None
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(
        self, config: TrainingConfig, data_name: str, device: torch.device | str = "cpu"
    ) -> None:
        """Initialize a training at its first step; a collective call.

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
        self._probed_part: Callable[[BatchT], BatchT]
        self._last_probe: dict[str, float] | None = None
        self.step_number = 0
        self.run_id = str(self.ranks.gathered(secrets.token_hex(8))[0])

    @abstractmethod
    def batch(self, step: int) -> BatchT:
        """Return the samples of a step, of all ranks or of this one, as ``take_step`` expects them."""

    @abstractmethod
    def take_step(self, batch: BatchT) -> float:
        """Compute gradients and update the weights; return the mean loss of this rank's samples."""

    @abstractmethod
    def evaluate(self, max_samples: int | None = None) -> MetricsT:
        """Evaluate the model on its test samples, with the same result on every rank; a collective call."""

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
        """Return the weights that the optimizer updates, in the order of the model's parameters."""
        return list(self.model.parameters())

    def compress_activations(
        self,
        options: ActivationOptions | None,
        loss: Callable[[BatchT], torch.Tensor],
        probed_part: Callable[[BatchT], BatchT],
    ) -> None:
        """Compress what forward passes save, as options say.

        Args:
            options: None for not at all.
            loss: of a batch or a part of it, computed inside ``saving``; what gradients are compared by.
            probed_part: the part of a batch that a probe computes exactly, see ``num_probed``.

        Raises:
            SpecError: the training ends before the first balance that the options ask for.
        """
        if isinstance(options, BalancedActivations):
            options.check_steps(self.config.steps)
        if options is not None:
            self.activations = options.compression()
            self._activation_options = options
            self._loss, self._probed_part = loss, probed_part
            if 0 < options.probe_every < self.config.steps:
                self.activations.expect_probes()

    def balance_activations(self, batch: BatchT) -> dict[str, float] | None:
        """Balance the levels of the model's parts by the batch of the next step, if that is due; a collective call.

        Returns:
            Values for the log, or None if nothing was due.
        """
        options = self._activation_options
        if self.activations is None or not isinstance(options, BalancedActivations):
            return None
        if not options.is_due(self.step_number):
            return None
        self._prepare_measurement()
        factors = self.activations.balance(
            self.model, lambda: self._loss(batch), parts=options.parts
        )
        return balance_values(self.activations, factors)

    def probe_activations(self, batch: BatchT) -> dict[str, float] | None:
        """Measure the score by a part of the batch of the next step, if that is due; a collective call.

        Drops the gradients of the last step, as ``balance_activations`` does.

        Returns:
            Values for the log, or None if nothing was due.
        """
        options = self._activation_options
        if self.activations is None or options is None:
            return None
        if not options.is_probe_due(self.step_number):
            return None
        part = self._probed_part(batch)
        self._prepare_measurement()
        self.activations.probe(self.model, lambda: self._loss(part))
        values = probe_values(self.activations)
        self._last_probe = {"step": self.step_number, **values}
        return values

    def _prepare_measurement(self) -> None:
        # of the step, so that a resumed run drops the same values
        torch.manual_seed(_step_seed(self.config.seed, self.step_number, self.ranks.rank))
        # the last step's, which the next one would drop; a measurement holds two sets of its own
        self.optimizer.zero_grad(set_to_none=True)

    def saving(self) -> AbstractContextManager[object]:
        """Return the context that compresses saved tensors, for a forward pass without its loss."""
        return nullcontext() if self.activations is None else self.activations

    def close(self) -> None:
        """Leave the process groups that the training has created."""

    def step_values(self, seconds: float) -> dict[str, float]:
        """Return further values for a log line of the loss, by default on compressed activations.

        Args:
            seconds: mean seconds per step since the last line.
        """
        del seconds
        return {} if self.activations is None else activation_values(self.activations)

    def rate_values(self) -> dict[str, float]:
        """Return the learning rate of the last step for the log, if rates differ."""
        rate = self.learning_rate
        return {} if rate.is_constant else {"learning_rate": rate.at(self.step_number - 1)}

    def totals(self) -> dict[str, Any]:
        """Return the totals of all steps and ranks for the last line of a log; a collective call.

        By default these are the bytes that the last step saved for backward, if compressed, and the last probe.
        """
        if self.activations is None:
            return {}
        found = {"activations": self.activations.report().to_config()}
        return found if self._last_probe is None else {**found, "probe": self._last_probe}

    def outcome(self, name: str, metrics: MetricsT, lines: list[dict[str, Any]]) -> Outcome:
        """Return the outcome of the run, for a comparison; a collective call."""
        return Outcome(
            name, metrics.to_config(), lines, self.config.steps, config=self.config.to_config(),
            data_name=self.data_name, ranks=self.ranks.world_size,
        )  # fmt: skip

    def counters(self) -> dict[str, Any]:
        """Return the statistics of this rank as JSON; a checkpoint stores them separately from the state.

        The state is identical for equal runs, but measured times are not.
        """
        return {}

    def load_counters(self, values: Mapping[str, Any] | None) -> None:
        """Restore the counters of a checkpoint; None resets them to zero.

        Raises:
            ValueError: ``values`` are not counters of this training.
        """

    def uncounted(self) -> str | None:
        """Return a note on what the counters of a resumed run lack; None if they are complete."""
        return None

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state that this rank needs to resume, by name; of sharded tensors its own part."""
        found = {f"model/{name}": x for name, x in self.model.state_dict().items()}
        for number, parameter in enumerate(self.trained()):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                found[f"optimizer/{number}/{name}"] = torch.as_tensor(value)
        found["step"] = torch.tensor(self.step_number)
        if self.activations is not None:
            found["activations"] = json_tensor(self.activations.state_dict())
            if self._last_probe is not None:
                found["last_probe"] = json_tensor(self._last_probe)
        return {name: own_part(value.detach()) for name, value in found.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from ``state``.

        Raises:
            SpecError: the state is from another model.
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
        # step counters are 0-dimensional, and only a fused optimizer holds them on the device
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
            probe = state.get("last_probe")
            self._last_probe = None if probe is None else json_of(probe)
        self.step_number = int(state["step"])


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a step; seeding every step avoids saving generator state."""
    return xxhash.xxh3_64_intdigest(f"{seed} {step} {rank}".encode())
