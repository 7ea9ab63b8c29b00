"""One rank of a training run: model, whole or sharded, optimizer, and a step of them.

With several ranks every block and what is left of the model are sharded by ``fully_shard``: a rank holds
its part of weights, gradients and the optimizer's state. Weights are gathered where they are used, and
gradients are averaged and scattered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, cast

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional

from tersor.errors import SpecError
from tersor.sites import shards
from tersor.sites.shards import LocalShards, ShardCompression
from tersor.workloads.data.tokens import TokenSource, num_windows, training_starts, windows
from tersor.workloads.gpt.captured import CapturedGradients
from tersor.workloads.gpt.config import GptConfig
from tersor.workloads.gpt.metrics import GptMetrics
from tersor.workloads.gpt.schemes import SCHEMES
from tersor.workloads.models.gpt import Gpt, set_weights
from tersor.workloads.ranks import lost_peers_explained
from tersor.workloads.training.run import TrainingRun

_BETAS: Final = (0.9, 0.95)
_EPSILON: Final = 1e-8
_WEIGHT_DECAY: Final = 0.1
_LARGEST_NORM: Final = 1.0
"""Of the gradient of all weights; a longer one is shortened to it."""


class GptRun(TrainingRun[torch.Tensor, GptMetrics]):
    """Model and optimizer of one rank; all ranks must step together.

    The same run on any number of ranks, and with a batch in any number of parts, takes the same steps up
    to rounding.

    Attributes:
        gradient_norm: of the last step, before it was shortened.
    """

    config: GptConfig
    model: Gpt

    def __init__(
        self, config: GptConfig, source: TokenSource, device: torch.device | str = "cpu"
    ) -> None:
        """Make the model; a collective call.

        Raises:
            SpecError: the batch cannot be shared evenly, the source has other tokens, or is too short; or
                the ranks are no whole nodes, or too few to exchange anything.
        """
        super().__init__(config, source.name, device)
        self.source = source
        if source.vocabulary > config.shape.vocabulary:
            raise SpecError(
                f"the model has {config.shape.vocabulary} tokens, too few for the "
                f"{source.vocabulary} of {source.name}"
            )
        self._length = config.shape.context + 1
        self._num_train = len(source.tokens("train"))
        self._num_windows = num_windows(len(source.tokens("validation")), self._length)
        training_starts(self._num_train, self._length, config.seed, 0, 0)
        if config.ranks > 1 and self.ranks.world_size > 1:
            raise SpecError("ranks in one process need one process; start it without torchrun")
        self._check_ranks()
        self._part_size = self._size_of_parts()
        self.model = self._made_model()
        self._exchanges = self._made_exchanges()
        self._captured: CapturedGradients | None = None
        self.optimizer = self._made_optimizer()
        self.learning_rate = config.rate()
        self.gradient_norm = 0.0
        self.compress_activations(config.activations, self.loss)

    @property
    def _num_ranks(self) -> int:
        """How many train together, be it in one process."""
        return max(self.ranks.world_size, self.config.ranks)

    def _check_ranks(self) -> None:
        """Refuse a scheme for one rank, nodes that are not full, and ranks that cannot compress activations."""
        config = self.config
        if config.scheme != "exact" and self._num_ranks == 1:
            raise SpecError(
                f"one rank exchanges nothing that {config.scheme} could compress; start several with "
                "torchrun or --ranks N, or leave the scheme exact"
            )
        config.check_nodes(self._num_ranks)
        if config.activations is not None and config.ranks > 1 and self.device.type == "cuda":
            raise SpecError(
                "ranks in one process on a GPU replay their passes as one CUDA graph, which cannot compress "
                "activations; start processes with torchrun"
            )

    def _size_of_parts(self) -> int:
        """Return how many sequences a rank computes at once."""
        num_ranks = self._num_ranks
        share = self.config.batch // num_ranks
        if self.config.batch % num_ranks:
            raise SpecError(
                f"a batch of {self.config.batch} cannot be shared by {num_ranks} ranks; choose a multiple "
                "of them"
            )
        if share % self.config.accumulation:
            raise SpecError(
                f"a rank's {share} sequences of a batch cannot be computed in "
                f"{self.config.accumulation} equal parts; choose another batch or accumulation"
            )
        return share // self.config.accumulation

    def _made_model(self) -> Gpt:
        model = Gpt(self.config.shape, device="meta")
        if self.ranks.world_size > 1:
            mesh = init_device_mesh(self.device.type, (self.ranks.world_size,))
            policies = self.policies()
            for block in model.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policies[0])
            fully_shard(model, mesh=mesh, mp_policy=policies[1])
        model.to_empty(device=self.device)
        set_weights(model, self.config.seed)
        return model

    def policies(self) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
        """Return in which dtypes a sharded model computes and moves: its blocks, and what is left."""
        if self.config.dtype == "fp32":
            return MixedPrecisionPolicy(), MixedPrecisionPolicy()
        return _bf16_policy(), _bf16_policy(output_dtype=torch.float32)

    def _made_exchanges(self) -> ShardCompression | LocalShards | None:
        """Return what moves weights and gradients between ranks in place of FSDP, if anything does."""
        config = self.config
        if config.ranks == 1:
            return self.attach(self.model) if isinstance(self.model, FSDPModule) else None
        scheme, per_node = SCHEMES[config.scheme], config.ranks_per_node or config.ranks
        dtype = torch.bfloat16 if config.dtype == "bf16" else None
        return LocalShards(
            self.model, [*self.model.blocks, self.model], config.ranks // per_node, per_node,
            scheme.weights, scheme.gradients, dtype,
        )  # fmt: skip

    def attach(self, model: Gpt) -> ShardCompression | None:
        """Change how a sharded model moves weights and gradients, as the scheme says.

        Called once, when the model is made and nothing has moved yet.
        """
        config, scheme = self.config, SCHEMES[self.config.scheme]
        if config.scheme == "exact":
            return None
        per_node: int | Literal["auto"] = config.ranks_per_node or "auto"
        return shards.compress(model, scheme.weights, scheme.gradients, per_node)

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the weights that the optimizer changes; ranks in one process compute with others."""
        local = self._exchanges
        return local.parameters() if isinstance(local, LocalShards) else super().trained()

    def _made_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW as published: only matrices decay."""
        parameters = self.trained()
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        rate = self.config.learning_rate
        # by default torch makes a pass over the weights for each operation: 5 ms for 125M on an H200
        is_fused = self.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=rate, betas=_BETAS, eps=_EPSILON, fused=is_fused)

    def batch(self, step: int) -> torch.Tensor:
        """Return this rank's sequences of a step, int64 [sequences, context + 1]."""
        own = self.ranks.share(self.config.batch)
        first, count = step * self.config.batch + own.start, own.stop - own.start
        starts = training_starts(self._num_train, self._length, self.config.seed, first, count)
        return windows(self.source, "train", starts, self._length)

    def take_step(self, batch: torch.Tensor) -> float:
        """Compute gradients and change the weights; return the mean loss of this rank's tokens."""
        with self._peers_needed():
            return self._take_step(batch)

    def _take_step(self, batch: torch.Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        batch, local = batch.to(self.device), self._exchanges
        if isinstance(local, LocalShards):
            shares = batch.split(len(batch) // local.world_size)
            total = torch.zeros((), device=self.device)
            for rank, share in enumerate(shares):
                total += self._gradients_of(share)
                local.collect(rank)
            total /= len(shares)
            local.reduce()
        else:
            total = self._add_gradients(batch)
        norm = torch.nn.utils.clip_grad_norm_(self.trained(), _LARGEST_NORM)
        self.gradient_norm = float(_whole(norm))
        self.optimizer.step()
        if isinstance(local, LocalShards):
            local.gather()
        return float(total)

    def _gradients_of(self, share: torch.Tensor) -> torch.Tensor:
        """Compute the gradient of one of the ranks in this process; return its mean loss."""
        if self.device.type != "cuda":
            return self._add_gradients(share)
        if self._captured is None:
            parameters = list(self.model.parameters())
            self._captured = CapturedGradients(self._add_gradients, parameters, share)
        return self._captured(share)

    def _add_gradients(self, sequences: torch.Tensor) -> torch.Tensor:
        """Compute the gradient of a rank's share of a batch, part by part; return its mean loss."""
        parts = sequences.split(self._part_size)
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(parts):
            if isinstance(self.model, FSDPModule):
                # ranks exchange the gradient of the whole batch, not those of its parts
                self.model.set_requires_gradient_sync(number == len(parts) - 1)
            loss = self._losses(part).mean() / len(parts)
            loss.backward()
            total += loss.detach()
        return total

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of sequences, with the graph that gradients are computed by."""
        return self._losses(batch.to(self.device)).mean()

    def _losses(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token after the first, float32 [sequences, context]."""
        with self._computing(), self.saving():
            logits = self.model(sequences[:, :-1])
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1), sequences[:, 1:].flatten(), reduction="none"
        )
        return losses.view(len(sequences), -1)

    def _peers_needed(self) -> AbstractContextManager[None]:
        """Explain what gloo raises inside a sharded model; NCCL has errors of its own class."""
        return lost_peers_explained(self.ranks.rank, says="gloo")

    def _computing(self) -> AbstractContextManager[object]:
        """Compute in the dtype of the run; a sharded model does so by itself."""
        if (
            self.config.dtype == "fp32"
            or isinstance(self.model, FSDPModule)
            or self.config.ranks > 1
        ):
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def step_values(self, seconds: float) -> dict[str, float]:
        """Return the norm of the last gradient, and the tokens of all ranks per second."""
        tokens = self.config.batch * self.config.shape.context
        return {
            "gradient_norm": self.gradient_norm,
            "tokens_per_s": round(tokens / seconds) if seconds else 0,
            **super().step_values(seconds),
        }

    def evaluate(self, max_samples: int | None = None) -> GptMetrics:
        """Judge the model on windows of the validation text; the same on every rank.

        Windows follow one another from the start of the text, so that every evaluation has the same.
        """
        count = self._num_windows if max_samples is None else min(max_samples, self._num_windows)
        if count < 1:
            raise SpecError(f"an evaluation needs at least one sequence, not {count}")
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        with torch.no_grad(), self._peers_needed():
            for places, is_own in self._rounds(count):
                starts = places * (self._length - 1)
                tokens = windows(self.source, "validation", starts, self._length)
                losses = self._losses(tokens.to(self.device)).double().sum(1)
                total += losses[torch.from_numpy(is_own)].sum()
        self.ranks.add_up(total)
        num_tokens = count * (self._length - 1)
        return GptMetrics(float(total) / num_tokens, num_tokens)

    def _rounds(self, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of windows for this rank, and which of them count.

        All ranks take as many rounds, as each of them gathers weights: a rank that has no window left
        computes the last one, which does not count.
        """
        # ranks in one process need not take turns here
        size = self._part_size * self.config.ranks
        step = size * self.ranks.world_size
        for first in range(0, count, step):
            places = first + self.ranks.rank * size + np.arange(size)
            yield np.minimum(places, count - 1), places < count

    def totals(self) -> dict[str, Any]:
        """Return what this rank received from others, and what its last step saved for backward."""
        found = super().totals()
        return found if self._exchanges is None else {**self._exchanges.stats.to_config(), **found}

    def close(self) -> None:
        """Leave the groups of ranks that exchange weights and gradients."""
        if isinstance(self._exchanges, ShardCompression):
            self._exchanges.restore()
            self._exchanges = None

    def state(self) -> dict[str, torch.Tensor]:
        """Return all that this rank needs to be resumed, by name."""
        found = super().state()
        if self._exchanges is not None:
            found |= {f"shards/{name}": x for name, x in self._exchanges.state_dict().items()}
        return {**found, **self._trained_by_name()}

    def _trained_by_name(self) -> dict[str, torch.Tensor]:
        """Return the weights that are trained where the model computes with others."""
        if not isinstance(self._exchanges, LocalShards):
            return {}
        pairs = zip(self.model.parameters(), self.trained(), strict=True)
        trained = {id(used): own.detach() for used, own in pairs}
        every = self.model.state_dict(keep_vars=True)
        return {f"model/{name}": trained[id(x)] for name, x in every.items() if id(x) in trained}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue where ``state`` was taken.

        Raises:
            SpecError: the state is of another model, or of ranks that exchanged in another way.
        """
        super().load_state(state)
        for name, own in self._trained_by_name().items():
            own.copy_(state[name])
        if self._exchanges is not None:
            prefix = "shards/"
            saved = {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}
            self._exchanges.load_state_dict({k: x.to(self.device) for k, x in saved.items()})


def _bf16_policy(output_dtype: torch.dtype | None = None) -> MixedPrecisionPolicy:
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=output_dtype
    )


def _whole(norm: torch.Tensor) -> torch.Tensor:
    """Return a norm over the weights of all ranks, which a sharded model gives in parts."""
    return cast(torch.Tensor, norm.full_tensor()) if hasattr(norm, "full_tensor") else norm
