"""Exchanges of shards among ranks in this process, and what they would send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tersor.comm import Collective, Exchange, LocalRanks
from tersor.sites.shards import Gradients, Weights
from tersor.sites.shards.gradients import GradientScatter
from tersor.sites.shards.weights import Change, WeightGather


class Scatters:
    """The gradients of one module on all ranks."""

    def __init__(self, options: Gradients, num_nodes: int, per_node: int, module: int = 0) -> None:
        self.ranks = LocalRanks(num_nodes, per_node)
        self.each = [GradientScatter(options, place, module) for place in self.ranks.places]
        self.steps: list[Collective] = []

    def __call__(self, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Reduce [num_ranks, num_ranks, size]; return [num_ranks, size], what each rank owns."""
        out = torch.empty(x.shape[1:], dtype=dtype)
        exchanges = [
            one.reduce_scatter(rows, own)
            for one, rows, own in zip(self.each, x.unbind(), out.unbind(), strict=True)
        ]
        self.steps = []
        self.ranks.run([noted(exchange, self.steps.append) for exchange in exchanges])
        return out


class Gathers:
    """The weights of one module on all ranks."""

    def __init__(self, options: Weights, num_nodes: int, per_node: int, module: int = 0) -> None:
        self.ranks = LocalRanks(num_nodes, per_node)
        self.each = [WeightGather(options, place, module) for place in self.ranks.places]
        self.steps: list[Collective] = []

    def __call__(
        self, x: torch.Tensor, change: Change = Change.STEP, *, is_aliased: bool = False
    ) -> torch.Tensor:
        """Gather [num_ranks, size]; return [num_ranks, num_ranks, size], what each rank gets."""
        outs = []
        exchanges = []
        for rank, one in enumerate(self.each):
            if is_aliased:
                # as FSDP does: the weights are written to this rank's part of what is gathered
                out = one.memory_for(x.numel(), x.dtype, x.device).view(x.shape)
                out[rank].copy_(x[rank])
                own = out[rank]
            else:
                out, own = torch.empty_like(x), x[rank].clone()
            outs.append(out)
            exchanges.append(one.all_gather(own, out, change))
        self.steps = []
        self.ranks.run([noted(exchange, self.steps.append) for exchange in exchanges])
        return torch.stack(outs)


def noted(exchange: Exchange[Any], note: Callable[[Collective], None]) -> Exchange[Any]:
    """Run an exchange and tell of every collective."""
    while True:
        try:
            step = next(exchange)
        except StopIteration as end:
            return end.value
        note(step)
        yield step
