"""One rank of a training run: model, whole or sharded, optimizer and training step.

With several ranks, each block and the rest of the model are sharded by ``fully_shard``: a rank holds its
part of weights, gradients and the optimizer's state. Weights are gathered before use, and gradients are
reduce-scattered.
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
from tersor.workloads.training.activations import num_probed
from tersor.workloads.training.run import TrainingRun

_BETAS: Final = (0.9, 0.95)
_EPSILON: Final = 1e-8
_WEIGHT_DECAY: Final = 0.1
_LARGEST_NORM: Final = 1.0
"""Norm to which the gradient of all weights is clipped."""


class GptRun(TrainingRun[torch.Tensor, GptMetrics]):
    """Model and optimizer of one rank; all ranks must step together.

    A run takes the same steps, up to rounding, for any number of ranks and any accumulation.

    Attributes:
        gradient_norm: of the last step, before clipping.
    """

    config: GptConfig
    model: Gpt

    def __init__(
        self, config: GptConfig, source: TokenSource, device: torch.device | str = "cpu"
    ) -> None:
        """Create the model; a collective call.

        Raises:
            SpecError: the batch cannot be shared evenly, the source has too many tokens in its vocabulary
                or is too short, the ranks do not fill whole nodes, or a scheme is given for one rank.
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
        self.compress_activations(
            config.activations, self._loss_of_part, lambda x: x[: num_probed(self._part_size)]
        )

    @property
    def _num_ranks(self) -> int:
        """Number of ranks that train together, in one process or several."""
        return max(self.ranks.world_size, self.config.ranks)

    def _check_ranks(self) -> None:
        """Reject a scheme for one rank, partial nodes, and activation compression in replayed ranks."""
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
        """Return the number of sequences that a rank computes at once."""
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
        """Return the dtype policies of a sharded model, for its blocks and for the rest."""
        if self.config.dtype == "fp32":
            return MixedPrecisionPolicy(), MixedPrecisionPolicy()
        return _bf16_policy(), _bf16_policy(output_dtype=torch.float32)

    def _made_exchanges(self) -> ShardCompression | LocalShards | None:
        """Return the compressed or in-process exchange that replaces that of FSDP; None if there is none."""
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
        """Install the exchange of the scheme in a sharded model; None if the scheme is exact.

        Called once, after the model is created and before its first collective.
        """
        config, scheme = self.config, SCHEMES[self.config.scheme]
        if config.scheme == "exact":
            return None
        per_node: int | Literal["auto"] = config.ranks_per_node or "auto"
        return shards.compress(model, scheme.weights, scheme.gradients, per_node)

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the weights that the optimizer updates; ranks in one process compute with separate ones."""
        local = self._exchanges
        return local.parameters() if isinstance(local, LocalShards) else super().trained()

    def _made_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW as published, with weight decay on matrices only."""
        parameters = self.trained()
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        rate = self.config.learning_rate
        # the default implementation passes over the weights once per operation: 5 ms for 125M on an H200
        is_fused = self.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=rate, betas=_BETAS, eps=_EPSILON, fused=is_fused)

    def batch(self, step: int) -> torch.Tensor:
        """Return this rank's sequences of a step, int64 [sequences, context + 1]."""
        own = self.ranks.share(self.config.batch)
        first, count = step * self.config.batch + own.start, own.stop - own.start
        starts = training_starts(self._num_train, self._length, self.config.seed, first, count)
        return windows(self.source, "train", starts, self._length)

    def take_step(self, batch: torch.Tensor) -> float:
        """Compute gradients and update the weights; return the mean loss of this rank's tokens."""
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
        """Compute the gradient of one rank in this process; return its mean loss."""
        if self.device.type != "cuda":
            return self._add_gradients(share)
        if self._captured is None:
            parameters = list(self.model.parameters())
            self._captured = CapturedGradients(self._add_gradients, parameters, share)
        return self._captured(share)

    def _add_gradients(self, sequences: torch.Tensor) -> torch.Tensor:
        """Accumulate the gradient of a rank's share of a batch, part by part; return its mean loss."""
        parts = sequences.split(self._part_size)
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(parts):
            if isinstance(self.model, FSDPModule):
                # ranks exchange the accumulated gradient, not those of its parts
                self.model.set_requires_gradient_sync(number == len(parts) - 1)
            loss = self._losses(part).mean() / len(parts)
            loss.backward()
            total += loss.detach()
        return total

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of sequences, attached to the autograd graph."""
        return self._losses(batch.to(self.device)).mean()

    def _loss_of_part(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of as many sequences as are computed at a time, because memory may be too small for more."""
        return self.loss(batch[: self._part_size])

    def _losses(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token after the first, float32 [sequences, context]."""
        with self._computing(), self.saving():
            logits = self.model(sequences[:, :-1])
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1), sequences[:, 1:].flatten(), reduction="none"
        )
        return losses.view(len(sequences), -1)

    def _peers_needed(self) -> AbstractContextManager[None]:
        """Translate gloo's errors inside a sharded model; NCCL raises its own error class."""
        return lost_peers_explained(self.ranks.rank, message_part="gloo")

    def _computing(self) -> AbstractContextManager[object]:
        """Return a context that computes in the dtype of the run; FSDP and ``LocalShards`` need none."""
        if (
            self.config.dtype == "fp32"
            or isinstance(self.model, FSDPModule)
            or self.config.ranks > 1
        ):
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def step_values(self, seconds: float) -> dict[str, float]:
        """Return the norm of the last gradient, and the tokens per second of all ranks."""
        tokens = self.config.batch * self.config.shape.context
        return {
            "gradient_norm": self.gradient_norm,
            "tokens_per_s": round(tokens / seconds) if seconds else 0,
            **super().step_values(seconds),
        }

    def evaluate(self, max_samples: int | None = None) -> GptMetrics:
        """Evaluate the model on windows of the validation text; the result is the same on every rank.

        Windows are consecutive from the start of the text, so every evaluation uses the same ones.
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
        """Yield the numbers of windows for this rank, and a mask of those that count.

        All ranks take the same number of rounds, because each round gathers weights. A rank without
        windows left computes the last window again, which does not count.
        """
        # ranks in one process are evaluated together
        size = self._part_size * self.config.ranks
        step = size * self.ranks.world_size
        for first in range(0, count, step):
            places = first + self.ranks.rank * size + np.arange(size)
            yield np.minimum(places, count - 1), places < count

    def totals(self) -> dict[str, Any]:
        """Return the bytes this rank received, and the bytes its last step saved for backward."""
        found = super().totals()
        return found if self._exchanges is None else {**self._exchanges.stats.to_config(), **found}

    def close(self) -> None:
        """Leave the process groups that exchange weights and gradients."""
        if isinstance(self._exchanges, ShardCompression):
            self._exchanges.restore()
            self._exchanges = None

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state that this rank needs to resume, by name."""
        found = super().state()
        if self._exchanges is not None:
            found |= {f"shards/{name}": x for name, x in self._exchanges.state_dict().items()}
        return {**found, **self._trained_by_name()}

    def _trained_by_name(self) -> dict[str, torch.Tensor]:
        """Return the trained weights by name, if the model computes with separate ones."""
        if not isinstance(self._exchanges, LocalShards):
            return {}
        pairs = zip(self.model.parameters(), self.trained(), strict=True)
        trained = {id(used): own.detach() for used, own in pairs}
        every = self.model.state_dict(keep_vars=True)
        return {f"model/{name}": trained[id(x)] for name, x in every.items() if id(x) in trained}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from ``state``.

        Raises:
            SpecError: the state is from another model or another scheme of exchange.
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
    """Return a norm over the weights of all ranks; a sharded model yields a distributed one."""
    return cast(torch.Tensor, norm.full_tensor()) if hasattr(norm, "full_tensor") else norm
