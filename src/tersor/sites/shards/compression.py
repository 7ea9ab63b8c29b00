"""A model whose weights and gradients travel compressed, plugged into the sockets of FSDP2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tersor.sites.shards.state import State, Stateful, joined, load_parts
from tersor.sites.shards.stats import ShardStats
from tersor.sites.shards.watch import WeightWatch
from tersor.sites.shards.weights import Change, WeightGather

ATTRIBUTE: Final = "_tersor_shards"
"""Of a compressed model: its ``ShardCompression``."""


class ShardCompression:
    """What ``compress`` put on a model: statistics, and a state for checkpoints.

    Attributes:
        model: the compressed one.
        weights: how weights travel; None leaves them to FSDP.
        gradients: how gradients travel; likewise.
        stats: of this rank.
        error_every: steps between two measurements of errors; 0 measures none.
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
        """Plug both into every module that FSDP shards, given with its group of parameters."""
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
        self._stack = ExitStack()
        for k, (module, _) in enumerate(self._units):
            if weights:
                module.set_custom_all_gather(_Gather(self, k))
                self._stack.callback(module.set_custom_all_gather, DefaultAllGather())
            if gradients:
                module.set_custom_reduce_scatter(_Scatter(self, k))
                self._stack.callback(module.set_custom_reduce_scatter, DefaultReduceScatter())
        self._stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._stack.callback(register_optimizer_step_post_hook(self._after_step).remove)

    def all_gather(self, unit: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Gather the weights of one module; called by FSDP."""
        gather, traffic = self._gathers[unit], self.stats.weights
        is_new = gather.is_new
        change = Change.EDIT if is_new and _is_in_backward() else self._change_of(unit)
        self.stats.num_full_gathers += change is Change.EDIT and gather.options.differences
        gather.errors = {} if change is Change.STEP and self._measures() else None
        exchange = gather.all_gather(x, out, change)
        self._levels.run(traffic.counted(exchange, self._levels.place, x.device))
        if gather.errors:
            traffic.errors.update({level: float(x) for level, x in gather.errors.items()})
        self._watch.gathered(unit)

    def reduce_scatter(self, unit: int, x: torch.Tensor, out: torch.Tensor, op: Any) -> None:
        """Reduce the gradients of one module; called by FSDP."""
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise SpecError(
                f"gradients can be summed or averaged, not reduced with {op}; call "
                "model.set_force_sum_reduction_for_comms(True) where a divide factor is set"
            )
        scatter, traffic = self._scatters[unit], self.stats.gradients
        scatter.errors = {} if self._measures() else None
        exchange = scatter.reduce_scatter(x, out)
        self._levels.run(traffic.counted(exchange, self._levels.place, x.device))
        if op == dist.ReduceOp.AVG:
            out.div_(self._levels.place.world_size)
        if scatter.errors:
            traffic.errors.update({level: float(x) for level, x in scatter.errors.items()})

    def memory_for(
        self, unit: int, size: int, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for the weights of one module; called by FSDP."""
        return self._gathers[unit].memory_for(size, dtype, device)

    def _measures(self) -> bool:
        return self.error_every > 0 and self.stats.num_steps % self.error_every == 0

    def _change_of(self, unit: int) -> Change:
        """Return what all ranks do with a module: they agree once per pass over the model.

        Weights do not change between forward and backward, so nothing is asked there.
        """
        if _is_in_backward():
            return Change.NONE
        if not self._asked or unit in self._asked:
            self._asked.clear()
            own = [
                Change.EDIT if self._gathers[k].is_new else change
                for k, change in enumerate(self._watch.changes())
            ]
            self._agreed = [Change(x) for x in self._levels.largest(own)]
        self._asked.add(unit)
        change, self._agreed[unit] = self._agreed[unit], Change.NONE
        return change

    def _before_step(self, *_: Any) -> None:
        self._watch.before_step()

    def _after_step(self, *_: Any) -> None:
        if self._watch.after_step():
            self._begin_step()

    def _begin_step(self) -> None:
        self._asked.clear()
        self.stats.num_steps += 1
        for module, group in self._units:
            if self.weights and group.is_unsharded:
                raise SpecError(
                    f"the weights of {name_of(self.model, module)} stay gathered over an optimizer "
                    "step, so that the next forward would use old ones; call "
                    "model.set_reshard_after_backward(True) before the last backward of a step, and "
                    "module.reshard() after an evaluation"
                )

    def mark_step(self) -> None:
        """Take what changed the weights for a step: for loops without an optimizer of torch."""
        self._watch.before_step()
        self._watch.mark()
        self._begin_step()

    def _parts(self) -> dict[str, Stateful]:
        gathers: dict[str, Stateful] = {f"gathers.{k}": x for k, x in self._gathers.items()}
        return {**gathers, **{f"scatters.{k}": x for k, x in self._scatters.items()}}

    def state_dict(self) -> State:
        """Return this rank's state: a training that loads it goes on as if it had not stopped."""
        changes = torch.tensor([int(change) for change in self._watch.changes()])
        return {"changes": changes, **joined(self._parts())}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state of this rank; call it after the model's own state is loaded.

        Raises:
            SpecError: the state is of other modules or options.
        """
        load_parts(self._parts(), {key: x for key, x in state.items() if key != "changes"})
        self._watch.loaded(state["changes"].tolist())
        self._asked.clear()

    def restore(self) -> None:
        """Give the model back to FSDP's own gathers and scatters."""
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


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - nothing public says so


def name_of(model: nn.Module, module: object) -> str:
    """Return the name of a module in messages."""
    names = [name for name, one in model.named_modules() if one is module and name]
    return names[0] if names else "the root module"
