"""Alternative exchanges of weights and gradients between the ranks of a GPT, and their timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.nn.parallel import DistributedDataParallel

from tersor.sites import shards
from tersor.sites.shards.fsdp import parameter_groups
from tersor.workloads.data.tokens import TokenSource
from tersor.workloads.gpt import GptConfig, GptRun
from tersor.workloads.models.gpt import Gpt, set_weights
from tersor.workloads.network.counters import sent_nbytes

_FIRST_LOW_RANK: int = 2
"""First step in which PowerSGD compresses, the minimum that it allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeVariant:
    """One configuration of the exchange.

    Attributes:
        name: of the configuration.
        wrapper: of the model: FSDP2 shards it, DDP replicates it on every rank.
        dtype: of weights and gradients in transit; with bf16, FSDP also computes in it.
        hook: of DDP: torch's for ``"bf16"`` and ``"powersgd"``, tersor's for ``"tersor"``, or none.
        weights: compression by tersor; None leaves weights to FSDP.
        gradients: compression by tersor; None leaves gradients to FSDP.
    """

    name: str
    wrapper: Literal["fsdp", "ddp"]
    dtype: Literal["fp32", "bf16"] = "fp32"
    hook: Literal["none", "bf16", "powersgd", "tersor"] = "none"
    weights: shards.Weights | None = None
    gradients: shards.Gradients | None = None


@dataclass(slots=True)
class Exchanged:
    """Volume and times of exchanges since the last ``clear``.

    Attributes:
        is_timed: whether every exchange starts on all ranks together and is timed. It is off while whole
            steps are timed, so that exchanges overlap as the wrapper allows.
        seconds: of weights and of gradients.
        nbytes: sent meanwhile by the interfaces of this rank's node, by name.
    """

    is_timed: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    nbytes: dict[str, dict[str, int]] = field(default_factory=dict)

    def clear(self, *, is_timed: bool) -> None:
        """Reset the totals."""
        self.is_timed, self.seconds, self.nbytes = is_timed, {}, {}

    def timed(self, what: str, task: Callable[[], object]) -> None:
        """Run and time a task that waits for its own exchanges."""
        before = counted_from_here()
        begin = time.perf_counter()
        task()
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - begin
        # peers of this node may still be sending
        dist.barrier()
        counts = self.nbytes.setdefault(what, {})
        for name, after in sent_nbytes().items():
            counts[name] = counts.get(name, 0) + after - before.get(name, 0)


def counted_from_here() -> dict[str, int]:
    """Return the bytes that interfaces have sent, before any rank continues; a collective call."""
    dist.barrier()
    before = sent_nbytes()
    # otherwise a peer of this node could send uncounted bytes before the counters are read
    dist.barrier()
    return before


class VariantRun(GptRun):
    """A training whose ranks exchange in the configuration ``variant``.

    Attributes:
        exchanged: measurements of its exchanges.
    """

    def __init__(
        self, config: GptConfig, source: TokenSource, variant: ExchangeVariant, ranks_per_node: int
    ) -> None:
        """Create the model; a collective call."""
        self.variant, self._ranks_per_node = variant, ranks_per_node
        self.exchanged = Exchanged()
        self._stats: shards.ShardStats | None = None
        super().__init__(config, source)

    def policies(self) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
        """Return the dtype policies of the configuration.

        Gradients are reduced in the dtype of their transfer. tersor's exchange reduces them in float32.
        """
        if self.variant.dtype == "fp32":
            return MixedPrecisionPolicy(), MixedPrecisionPolicy()
        half = torch.bfloat16
        summed = half if self.variant.gradients is None else torch.float32
        inner = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=summed)
        return inner, replace(inner, output_dtype=torch.float32)

    def _made_model(self) -> Any:
        if self.variant.wrapper == "fsdp":
            return super()._made_model()
        whole = Gpt(self.config.shape)
        set_weights(whole, self.config.seed)
        model = DistributedDataParallel(whole)
        hook, state = self._hook(model.process_group)
        if self.variant.hook == "powersgd":
            hook = _one_at_a_time(hook)
        model.register_comm_hook(None, _timed_hook(self.exchanged, hook, state))
        return model

    def _hook(self, group: Any) -> tuple[Callable[[Any, Any], Any], Any]:
        if self.variant.hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=_FIRST_LOW_RANK)
            return powerSGD_hook.powerSGD_hook, state
        if self.variant.hook == "tersor":
            options = self.variant.gradients or shards.Gradients()
            ours = shards.DdpState(group, options, self._ranks_per_node)
            self._stats = ours.stats
            return shards.ddp_hook, ours
        plain = {"bf16": default_hooks.bf16_compress_hook, "none": default_hooks.allreduce_hook}
        return plain[self.variant.hook], group

    def attach(self, model: Gpt) -> None:
        """Install the compression of the configuration, if any, and time the collectives of FSDP."""
        del model
        variant = self.variant
        if variant.weights is not None or variant.gradients is not None:
            ours = shards.compress(
                self.model, variant.weights, variant.gradients, self._ranks_per_node
            )
            self._stats = ours.stats
        for module in self.model.modules():
            if not isinstance(module, FSDPModule):
                continue
            for group in parameter_groups(module):
                gather, scatter = group._all_gather_comm, group._reduce_scatter_comm  # noqa: SLF001
                module.set_custom_all_gather(_TimedGather(self.exchanged, gather))
                module.set_custom_reduce_scatter(_TimedScatter(self.exchanged, scatter))

    def coding_seconds(self) -> float:
        """Return the seconds tersor spent between collectives so far; 0 for other exchanges."""
        if self._stats is None:
            return 0.0
        both = (self._stats.weights, self._stats.gradients)
        return sum(one.times.read()["coding"] for one in both)


class _Timed:
    """Wraps a collective of FSDP, and times it if ``Exchanged.is_timed``."""

    what: ClassVar[str]

    def __init__(self, exchanged: Exchanged, inner: Any) -> None:
        self._exchanged, self._inner = exchanged, inner

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        memory: torch.Tensor = self._inner.allocate(size, dtype=dtype, device=device)
        return memory

    def __call__(self, *, async_op: bool = False, **arguments: Any) -> Any:
        if not self._exchanged.is_timed:
            return self._inner(**arguments, async_op=async_op)
        self._exchanged.timed(self.what, lambda: self._inner(**arguments, async_op=False))
        return None


class _TimedGather(_Timed, AllGather):  # type: ignore[misc]
    what = "weights"


class _TimedScatter(_Timed, ReduceScatter):  # type: ignore[misc]
    what = "gradients"


def _one_at_a_time(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a hook that completes before the next bucket begins.

    PowerSGD starts its second collective when the first completes. With several buckets in flight, gloo
    ranks would start them in different orders, which aborts the process.
    """

    def waiting(state: Any, bucket: Any) -> Any:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(hook(state, bucket).wait())
        return future

    return waiting


def _timed_hook(
    exchanged: Exchanged, hook: Callable[[Any, Any], Any], state: Any
) -> Callable[..., Any]:
    """Return a hook that calls another one, and times it if ``Exchanged.is_timed``.

    The wrapper also hides the name of torch's bfloat16 hook. DDP rejects that name without CUDA, although
    gloo supports sums in bfloat16.
    """

    def timed_hook(_: Any, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - DDP compares annotations
        if not exchanged.is_timed:
            return hook(state, bucket)
        found: list[torch.Tensor] = []
        exchanged.timed("gradients", lambda: found.append(hook(state, bucket).wait()))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(found[0])
        return future

    return timed_hook


def weights_of(model: nn.Module) -> int:
    """Return the number of weights of a model, over all ranks."""
    return sum(parameter.numel() for parameter in model.parameters())
