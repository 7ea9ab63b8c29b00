"""Sharded training with all ranks simulated in one process, on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from tersor.comm import LocalRanks
from tersor.division import ceil_div
from tersor.errors import SpecError
from tersor.sites.shards.gradients import GradientScatter
from tersor.sites.shards.options import Gradients, Weights
from tersor.sites.shards.state import (
    State,
    Stateful,
    joined,
    load_parts,
    with_origin,
    without_origin,
)
from tersor.sites.shards.stats import ShardStats
from tersor.sites.shards.weights import Change, WeightGather


class LocalShards:
    """A model trained as if ``num_nodes * ranks_per_node`` ranks sharded it under FSDP2.

    The model computes with the weights that its ranks would gather. ``parameters()`` are the weights that the
    optimizer updates. A training step is::

        for rank in range(local.world_size):
            loss_of(model, batch_of(rank)).backward()
            local.collect(rank)
        local.reduce()
        optimizer.step()
        local.gather()

    Weights and gradients are bit-identical to those of real ranks, shard by shard.

    Attributes:
        model: the model, which holds the gathered weights.
        stats: what the first rank would have received: gradients, and weights in the forward pass. Real ranks that
            reshard gather weights once more before backward, within the node if there is a reference.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[nn.Module],
        num_nodes: int,
        ranks_per_node: int,
        weights: Weights | None = None,
        gradients: Gradients | None = None,
        param_dtype: torch.dtype | None = None,
    ) -> None:
        """Shard a model's weights among the simulated ranks.

        Args:
            model: the unsharded model, on one device.
            units: the modules that would be passed to ``fully_shard``.
            num_nodes: number of simulated nodes.
            ranks_per_node: number of simulated ranks per node.
            weights: compression of weights; None gathers them uncompressed.
            gradients: compression of gradients; None sums them uncompressed, in the order of ranks.
            param_dtype: dtype in which weights are gathered and used for computation, as in a
                ``MixedPrecisionPolicy``. The model is cast to it. Gradients are exchanged in the model's original
                dtype.

        Raises:
            SpecError: some weights belong to no unit, or there is no rank.
        """
        for name, number in (("num_nodes", num_nodes), ("ranks_per_node", ranks_per_node)):
            if type(number) is not int or number < 1:
                raise SpecError(f"{name} must be a whole number from 1 on, not {number!r}")
        self.model, self.stats = model, ShardStats()
        self._ranks = LocalRanks(num_nodes, ranks_per_node)
        self._origin = (
            f"all ranks of {num_nodes} nodes, {ranks_per_node} per node, with "
            f"weights={weights}, gradients={gradients}"
        )
        self.world_size = len(self._ranks.places)
        self._units = [
            _Unit(parameters, self._ranks, number, weights, gradients)
            for number, parameters in enumerate(_parameters_of(model, units))
        ]
        if param_dtype is not None:
            model.to(param_dtype)
        for unit in self._units:
            unit.gather(self.stats, Change.EDIT)

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights to optimize, in the order of ``model.parameters()``."""
        owners = {id(used): own for unit in self._units for used, own in unit.pairs()}
        return [owners[id(p)] for p in self.model.parameters()]

    def collect(self, rank: int) -> None:
        """Take the model's gradients as those of one rank, and clear them.

        Raises:
            SpecError: there is no such rank.
        """
        if rank not in range(self.world_size):
            raise SpecError(f"rank must be from 0 to {self.world_size - 1}, not {rank!r}")
        for unit in self._units:
            unit.collect(rank)

    def reduce(self) -> None:
        """Write the mean gradient that the ranks would compute to ``parameters()``."""
        for unit in self._units:
            unit.reduce(self.stats)

    def gather(self, change: Change = Change.STEP) -> None:
        """Write the weights that the ranks would gather from ``parameters()`` to the model."""
        self.stats.num_steps += change is Change.STEP
        for unit in self._units:
            unit.gather(self.stats, change)

    def _parts(self) -> dict[str, Stateful]:
        return {
            f"unit{k}.rank{rank}.{kind}": one
            for k, unit in enumerate(self._units)
            for kind, every in unit.parts().items()
            for rank, one in enumerate(every)
        }

    def state_dict(self) -> State:
        """Return the state needed to resume training exactly, except the weights."""
        return with_origin(self._origin, joined(self._parts()))

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a state. Load the weights of ``parameters()`` first.

        Raises:
            SpecError: the state has other ranks, units or options.
        """
        load_parts(self._parts(), without_origin(self._origin, state))
        self.gather(Change.NONE)


def _parameters_of(model: nn.Module, units: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """Return the parameters that each unit shards, in the order in which FSDP visits modules.

    A parameter belongs to the innermost unit that contains it.
    """
    ordered = [module for module in model.modules() if any(module is unit for unit in units)]
    seen: set[int] = set()
    found: list[list[nn.Parameter]] = []
    for unit in reversed(ordered):
        found.append([p for p in unit.parameters() if id(p) not in seen])
        seen.update(map(id, unit.parameters()))
    if any(id(p) not in seen for p in model.parameters()):
        raise SpecError("some weights of the model belong to no unit; add the model itself to them")
    return [parameters for parameters in reversed(found) if parameters]


class _Unit:
    """The exchanges of one unit: parameters sharded along the first dimension, padded to equal sizes."""

    def __init__(
        self,
        used: list[nn.Parameter],
        ranks: LocalRanks,
        number: int,
        weights: Weights | None,
        gradients: Gradients | None,
    ) -> None:
        self.used, self._ranks = used, ranks
        self._own = [nn.Parameter(p.detach().clone(), p.requires_grad) for p in used]
        self._num_ranks = len(ranks.places)
        self._gathers = [WeightGather(weights, p, number) for p in ranks.places if weights]
        self._scatters = [GradientScatter(gradients, p, number) for p in ranks.places if gradients]
        self._collected: dict[int, tuple[list[int], torch.Tensor]] = {}

    def pairs(self) -> Iterable[tuple[nn.Parameter, nn.Parameter]]:
        """Return pairs of the parameter that the model computes with and the one that is optimized."""
        return zip(self.used, self._own, strict=True)

    def _flat(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return [num_ranks, size]: the shards of all tensors, one row per rank, in the dtype of the optimized weights."""
        if not tensors:
            return self._own[0].new_empty(self._num_ranks, 0)
        parts = [self._by_rank(x) for x in tensors]
        return torch.cat(parts, 1).to(self._own[0].dtype)

    def _by_rank(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return [num_ranks, size]: the shards of a tensor, padded with zeros."""
        missing = self._num_ranks * _shard_size(tensor, self._num_ranks) - tensor.numel()
        flat = tensor.reshape(-1)
        if missing:
            flat = nn.functional.pad(flat, (0, missing))
        return flat.view(self._num_ranks, -1)

    def _unflat(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Write shards, [num_ranks, size], back to the tensors; the inverse of ``_flat``."""
        sizes = [_shard_size(x, self._num_ranks) for x in tensors]
        for part, tensor in zip(flat.split(sizes, 1), tensors, strict=True):
            if part.numel() == tensor.numel():
                tensor.view(self._num_ranks, -1).copy_(part)
            else:
                tensor.view(-1).copy_(part.reshape(-1)[: tensor.numel()])

    def collect(self, rank: int) -> None:
        grads = {k: p.grad for k, p in enumerate(self.used) if p.grad is not None}
        self._collected[rank] = list(grads), self._flat(list(grads.values()))
        for p in self.used:
            p.grad = None

    @torch.no_grad()
    def reduce(self, stats: ShardStats) -> None:
        if len(self._collected) != self._num_ranks:
            raise SpecError(
                f"gradients of {len(self._collected)} of {self._num_ranks} ranks were collected; call "
                "collect(rank) for each of them before reduce()"
            )
        every = [self._collected.pop(rank) for rank in range(self._num_ranks)]
        present = every[0][0]
        if any(one != present for one, _ in every):
            raise SpecError(
                "ranks have gradients of different parameters; let all of them use the same"
            )
        if not present:
            for own in self._own:
                own.grad = None
            return
        total = self._reduced([x for _, x in every], stats)
        grads = {k: torch.empty_like(self._own[k]) for k in present}
        self._unflat(total, list(grads.values()))
        for k, own in enumerate(self._own):
            own.grad = grads.get(k)

    def _reduced(self, every: Sequence[torch.Tensor], stats: ShardStats) -> torch.Tensor:
        """Return the mean of the ranks' gradients, [num_ranks, size]."""
        total = torch.empty_like(every[0])
        if self._scatters:
            exchanges = [
                scatter.reduce_scatter(x, out)
                for scatter, x, out in zip(self._scatters, every, total, strict=True)
            ]
            place = self._ranks.places[0]
            exchanges[0] = stats.gradients.counted(exchanges[0], place, total.device)
            self._ranks.run(exchanges)
        else:
            total.copy_(every[0])
            for x in every[1:]:
                total += x
        return total.div_(self._num_ranks)

    @torch.no_grad()
    def gather(self, stats: ShardStats, change: Change) -> None:
        if not self._gathers:
            torch._foreach_copy_(list[torch.Tensor](self.used), list[torch.Tensor](self._own))
            return
        stats.num_full_gathers += change is Change.EDIT and self._gathers[0].options.differences
        flat = self._flat(self._own).to(self.used[0].dtype)
        outs = [x.memory_for(flat.numel(), flat.dtype, flat.device) for x in self._gathers]
        exchanges = [
            gather.all_gather(x, out, change)
            for gather, x, out in zip(self._gathers, flat, outs, strict=True)
        ]
        place = self._ranks.places[0]
        exchanges[0] = stats.weights.counted(exchanges[0], place, flat.device)
        self._ranks.run(exchanges)
        # all ranks gather the same values
        self._unflat(outs[0].view(flat.shape), self.used)

    def parts(self) -> dict[str, Sequence[Stateful]]:
        """Return the exchanges that have state, one per rank."""
        return {"weights": self._gathers, "gradients": self._scatters}


def _shard_size(parameter: torch.Tensor, num_ranks: int) -> int:
    """Return the number of values in a rank's shard of whole rows, including padding."""
    rows = parameter.shape[0] if parameter.dim() else 1
    width = parameter.numel() // rows if rows else 0
    return ceil_div(rows, num_ranks) * width
