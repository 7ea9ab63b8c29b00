"""Compression of a model's weights and gradients through the custom collectives of FSDP2."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tersor.comm import RankLevels
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
from tersor.sites.shards.watch import WeightWatch
from tersor.sites.shards.weights import Change, WeightGather

ATTRIBUTE: Final = "_tersor_shards"
"""Attribute of a compressed model that holds its ``ShardCompression``."""


class ShardCompression:
    """The compression that ``compress`` attached to a model: its statistics, and its state for checkpoints.

    Attributes:
        model: the compressed model.
        weights: compression of weights; None leaves them to FSDP.
        gradients: compression of gradients; None leaves them to FSDP.
        stats: statistics of this rank.
        error_every: number of steps between two error measurements; 0 disables them.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Weights | None,
        gradients: Gradients | None,
        levels: RankLevels,
        units: Sequence[tuple[FSDPModule, Any]],
        error_every: int,
    ) -> None:
        """Install the collectives on every sharded module; ``units`` pairs each module with its parameter group."""
        self.model, self.weights, self.gradients = model, weights, gradients
        self.stats = ShardStats()
        self.error_every = error_every
        self._levels = levels
        self._units = list(units)
        place = levels.place
        self._gathers = {
            k: WeightGather(weights, place, k) for k in range(len(self._units)) if weights
        }
        self._scatters = {
            k: GradientScatter(gradients, place, k) for k in range(len(self._units)) if gradients
        }
        self._watch = WeightWatch([group for _, group in self._units])
        self._agreed = [Change.EDIT] * len(self._units)
        self._asked: set[int] = set()
        self._is_step_counted = False
        self._stepped: set[int] = set()
        self._stack = ExitStack()
        for k, (module, _) in enumerate(self._units):
            if weights:
                module.set_custom_all_gather(_Gather(self, k))
                self._stack.callback(module.set_custom_all_gather, DefaultAllGather())
            if gradients:
                module.set_custom_reduce_scatter(_Scatter(self, k))
                self._stack.callback(module.set_custom_reduce_scatter, DefaultReduceScatter())
        for register, method in (
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            self._stack.callback(weakref.finalize(self, register(_weak(method)).remove))

    def __repr__(self) -> str:
        """Return the number of sharded modules, and how their weights and gradients are compressed."""
        return f"ShardCompression({len(self._units)} modules, {self.weights}, {self.gradients})"

    @property
    def ranks_per_node(self) -> int:
        """Number of consecutive ranks per node, as given or detected."""
        return self._levels.place.ranks_per_node

    def all_gather(self, unit: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Gather the weights of one module. FSDP calls this."""
        gather, traffic = self._gathers[unit], self.stats.weights
        self._is_step_counted = False
        is_new = gather.is_new
        change = Change.EDIT if is_new and _is_in_backward() else self._change_of(unit)
        self.stats.num_full_gathers += change is Change.EDIT and gather.options.differences
        gather.errors = {} if change is Change.STEP and self._measures() else None
        exchange = gather.all_gather(x, out, change)
        self._levels.run(traffic.counted(exchange, self._levels.place, x.device))
        if gather.errors:
            traffic.errors.update({level: float(e) for level, e in gather.errors.items()})
        self._watch.mark_gathered(unit)

    def reduce_scatter(self, unit: int, x: torch.Tensor, out: torch.Tensor, op: Any) -> None:
        """Reduce the gradients of one module. FSDP calls this."""
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise SpecError(
                f"gradients can be summed or averaged, not reduced with {op}; call "
                "model.set_force_sum_reduction_for_comms(True) where a divide factor is set"
            )
        scatter, traffic = self._scatters[unit], self.stats.gradients
        self._is_step_counted = False
        scatter.errors = {} if self._measures() else None
        exchange = scatter.reduce_scatter(x, out)
        self._levels.run(traffic.counted(exchange, self._levels.place, x.device))
        if op == dist.ReduceOp.AVG:
            out.div_(self._levels.place.world_size)
        if scatter.errors:
            traffic.errors.update({level: float(e) for level, e in scatter.errors.items()})

    def memory_for(
        self, unit: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for the gathered weights of one module. FSDP calls this."""
        return self._gathers[unit].memory_for(size, dtype, device)

    def _measures(self) -> bool:
        return self.error_every > 0 and self.stats.num_steps % self.error_every == 0

    def _change_of(self, unit: int) -> Change:
        """Return the change of a module's weights that all ranks agreed on, once per forward pass over the model.

        Ranks do not compare in backward, which uses the weights that forward gathered.
        """
        if _is_in_backward():
            return Change.NONE
        if not self._asked or unit in self._asked:
            self._asked.clear()
            own = [
                Change.EDIT if self._gathers[k].is_new else change
                for k, change in enumerate(self._watch.snapshot_changes())
            ]
            self._agreed = [Change(x) for x in self._levels.elementwise_max(own)]
        elif self._watch.is_edited_since_snapshot(unit):
            raise SpecError(
                f"the weights of {name_of(self.model, self._units[unit][0])} were changed after the pass "
                "over the model had begun; change them before it, or call compression.mark_edit() on all "
                "ranks after the change"
            )
        self._asked.add(unit)
        change, self._agreed[unit] = self._agreed[unit], Change.NONE
        return change

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        params = (p for group in optimizer.param_groups for p in group["params"])
        # record this before the step, which may drop gradients
        self._stepped = {id(p) for p in params if p.grad is not None}
        self._watch.before_step()

    def _after_step(self, *_: Any) -> None:
        if self._watch.after_step(self._stepped):
            self._begin_step()

    def _begin_step(self) -> None:
        """Count a step, unless another optimizer has already stepped after the same backward."""
        self._asked.clear()
        self.stats.num_steps += not self._is_step_counted
        self._is_step_counted = True
        for module, group in self._units:
            if self.weights and group.is_unsharded:
                raise SpecError(
                    f"the weights of {name_of(self.model, module)} stay gathered over an optimizer "
                    "step, so that the next forward would use old ones; call "
                    "model.set_reshard_after_backward(True) before the last backward of a step, and "
                    "module.reshard() after an evaluation"
                )

    def mark_step(self) -> None:
        """Treat all changes of the weights since the last gather as an optimizer step, for loops without a torch optimizer."""
        self._watch.mark_step()
        self._begin_step()

    def mark_edit(self) -> None:
        """Make ranks agree again before the next gather. All ranks must call this.

        It is needed only after weights were changed in the middle of a pass over the model, for example by a hook.
        """
        self._asked.clear()

    def _parts(self) -> dict[str, Stateful]:
        gathers: dict[str, Stateful] = {f"gathers.{k}": x for k, x in self._gathers.items()}
        return {**gathers, **{f"scatters.{k}": x for k, x in self._scatters.items()}}

    def state_dict(self) -> State:
        """Return this rank's state, from which training can resume exactly."""
        changes = torch.tensor([int(change) for change in self._watch.changes()])
        return with_origin(self._origin(), {"changes": changes, **joined(self._parts())})

    def _origin(self) -> str:
        place = self._levels.place
        return (
            f"rank {place.rank} of {place.world_size}, {place.ranks_per_node} per node, with "
            f"weights={self.weights}, gradients={self.gradients}"
        )

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a state of this rank. Load the model's own state first.

        Raises:
            SpecError: the state belongs to another rank, or to other modules or options.
        """
        own = without_origin(self._origin(), state)
        changes = own.pop("changes")
        load_parts(self._parts(), own)
        self._watch.mark_loaded(changes.tolist())
        self._asked.clear()

    def restore(self) -> None:
        """Remove the compression: the model uses FSDP's own collectives again."""
        self._stack.close()
        self._levels.close()
        delattr(self.model, ATTRIBUTE)


class _Gather(AllGather):
    def __init__(self, compression: ShardCompression, unit: int) -> None:
        self._compression, self._unit = compression, unit

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        (count,) = size
        return self._compression.memory_for(self._unit, int(count), dtype, device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        del group, async_op
        self._compression.all_gather(self._unit, input_tensor, output_tensor)


class _Scatter(ReduceScatter):
    def __init__(self, compression: ShardCompression, unit: int) -> None:
        self._compression, self._unit = compression, unit

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        del group, async_op
        self._compression.reduce_scatter(self._unit, input_tensor, output_tensor, op)


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that holds a method's object by weak reference, and does nothing once the object is gone."""
    reference = weakref.WeakMethod(method)

    def hook(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return hook


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - nothing public says so


def name_of(model: nn.Module, module: object) -> str:
    """Return the name of a module for error messages."""
    names = [name for name, one in model.named_modules() if one is module and name]
    return names[0] if names else "the root module"
