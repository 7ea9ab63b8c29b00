"""``compress`` and ``restore`` for models under FSDP2, with checks for unsupported configurations."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tersor.comm import RankLevels, check_distributed, check_same_everywhere, failure_announced
from tersor.errors import SpecError
from tersor.sites.shards.compression import ATTRIBUTE, ShardCompression, name_of
from tersor.sites.shards.nodes import RanksPerNode, found_ranks_per_node
from tersor.sites.shards.options import Gradients, Weights
from tersor.sites.shards.warm_up import warm_up

_DEFAULT_WEIGHTS, _DEFAULT_GRADIENTS = Weights(), Gradients()
_log = logging.getLogger("tersor")


def compress(
    model: nn.Module,
    weights: Weights | None = _DEFAULT_WEIGHTS,
    gradients: Gradients | None = _DEFAULT_GRADIENTS,
    ranks_per_node: RanksPerNode = "auto",
    *,
    error_every: int = 0,
) -> ShardCompression:
    """Compress the weights and gradients that a sharded model exchanges. This is a collective call.

    Call it after ``fully_shard`` has been applied to the model and its modules, before or after the first step. FSDP
    still manages the model: optimizers, clipping, checkpoints and accumulation work unchanged.

    Args:
        model: a model under FSDP2, on a one-dimensional mesh.
        weights: compression of weights; None leaves them to FSDP.
        gradients: compression of gradients; None leaves them to FSDP.
        ranks_per_node: number of consecutive ranks per node. ``"auto"`` detects it from torchrun's ``GROUP_RANK`` and
            the host names.
        error_every: number of steps between two error measurements; 0 disables them. A measurement waits for the
            device.

    Raises:
        SpecError: the FSDP configuration is not supported, or ranks pass different arguments.
        ExchangeError: a rank has failed or left.
    """
    check_distributed()
    group = _first_process_group(model)
    with failure_announced(group):
        _check_types(model, weights, gradients, error_every)
        units = _checked_units(model, weights)
        _warm_up(units, weights, gradients)
    arguments = {
        "weights": weights,
        "gradients": gradients,
        "ranks_per_node": ranks_per_node,
        "error_every": error_every,
        "modules": [name_of(model, module) for module, _ in units],
        "shapes": [_described(group) for _, group in units],
    }
    check_same_everywhere(arguments, "shards.compress(model)", group)
    num_ranks = found_ranks_per_node(ranks_per_node, group)
    levels = RankLevels(group, num_ranks, units[0][1].device)
    _warn_of_unsharded(model, units)
    compression = ShardCompression(model, weights, gradients, levels, units, error_every)
    setattr(model, ATTRIBUTE, compression)
    return compression


def _check_types(model: object, weights: object, gradients: object, error_every: object) -> None:
    if not isinstance(model, nn.Module):
        raise SpecError(f"a model to compress is an nn.Module, not {type(model).__name__}")
    for name, kind, value in (("weights", Weights, weights), ("gradients", Gradients, gradients)):
        if not isinstance(value, kind | None):
            raise SpecError(f"{name} must be {kind.__name__}(...) or None, not {value!r}")
    if type(error_every) is not int or error_every < 0:
        raise SpecError(f"error_every must be a whole number from 0 on, not {error_every!r}")


def _warn_of_unsharded(model: nn.Module, units: list[tuple[FSDPModule, Any]]) -> None:
    """Warn about parameters outside all sharded modules, which are not compressed."""
    known = {id(one.sharded_param) for _, group in units for one in group.fsdp_params}
    others = [name for name, p in model.named_parameters() if id(p) not in known]
    if others:
        _log.warning(
            "%d parameters of this model are not sharded, the first is %s: they are not compressed; call "
            "fully_shard on all modules before shards.compress",
            len(others),
            others[0],
        )


def _warm_up(
    units: list[tuple[FSDPModule, Any]], weights: Weights | None, gradients: Gradients | None
) -> None:
    for _, group in units:
        for one in group.fsdp_params:
            param_dtype = group.mp_policy.param_dtype or one.sharded_param.dtype
            reduce_dtype = group.mp_policy.reduce_dtype or param_dtype
            warm_up(weights, gradients, param_dtype, reduce_dtype, group.device)


def _described(group: Any) -> list[tuple[Any, ...]]:
    """Return the properties of a group's parameters that ranks must agree on."""
    policy = group.mp_policy
    dtypes = policy.param_dtype, policy.reduce_dtype
    return [(tuple(one._orig_size), one.sharded_param.dtype, *dtypes) for one in group.fsdp_params]  # noqa: SLF001


def restore(model: nn.Module) -> None:
    """Remove the compression of a model, which then uses FSDP's own collectives. This is a collective call.

    Raises:
        SpecError: the model is not compressed.
    """
    compression: ShardCompression | None = getattr(model, ATTRIBUTE, None)
    if compression is None:
        raise SpecError("this model is not compressed; call shards.compress(model) first")
    compression.restore()


def _checked_units(model: nn.Module, weights: Weights | None) -> list[tuple[FSDPModule, Any]]:
    """Return every module that FSDP shards, with its parameter group.

    Raises:
        SpecError: no module is sharded, or one cannot be compressed.
    """
    if getattr(model, ATTRIBUTE, None) is not None:
        raise SpecError("this model is compressed already; call shards.restore(model) first")
    units: list[tuple[FSDPModule, Any]] = []
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        groups = parameter_groups(module)
        if len(groups) > 1:
            raise SpecError(
                f"{name_of(model, module)} has parameters on several meshes; give fully_shard modules "
                "whose parameters share one mesh"
            )
        for group in groups:
            _check_group(name_of(model, module), group, weights)
            units.append((module, group))
    if not units:
        raise SpecError("nothing of this model is sharded; call fully_shard(model) first")
    members = {tuple(dist.get_process_group_ranks(g._all_gather_process_group)) for _, g in units}  # noqa: SLF001
    if len(members) > 1:
        raise SpecError(
            "modules are sharded over different ranks; give fully_shard one mesh for all"
        )
    return units


def _first_process_group(model: object) -> dist.ProcessGroup | None:
    """Return the process group in which ranks compare arguments: that of the first sharded module, or None for all."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        for group in parameter_groups(module) if isinstance(module, FSDPModule) else ():
            found: dist.ProcessGroup = group._all_gather_process_group  # noqa: SLF001
            return found
    return None


def parameter_groups(module: FSDPModule) -> list[Any]:
    """Return FSDP's parameter groups of a module: torch 2.13 has a list, torch 2.11 at most one."""
    state: Any = module._get_fsdp_state()  # noqa: SLF001 - nothing public has them
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # noqa: SLF001


def _check_group(name: str, group: Any, weights: Weights | None) -> None:
    if group._is_hsdp:  # noqa: SLF001
        raise SpecError(
            f"{name} is sharded on a mesh of two dimensions, whose all-reduce FSDP does itself; give "
            "fully_shard a mesh of one dimension, mesh._flatten(), and pass ranks_per_node=N to shards.compress"
        )
    if group.post_forward_mesh_info not in (None, group.mesh_info):
        raise SpecError(
            f"{name} is resharded to fewer ranks after forward; give fully_shard "
            "reshard_after_forward=True or False, and pass Weights(reference='node') to shards.compress"
        )
    comms = type(group._all_gather_comm).__name__, type(group._reduce_scatter_comm).__name__  # noqa: SLF001
    for comm in comms:
        if not comm.startswith("Default"):
            raise SpecError(
                f"{name} has the collective {comm} already; compress before set_symm_mem_for_comm, "
                "set_allocate_memory_from_process_group_for_comm or a custom collective, and without them"
            )
    dtypes = {group.mp_policy.param_dtype or one.sharded_param.dtype for one in group.fsdp_params}
    if weights is not None and len(dtypes) > 1:
        raise SpecError(
            f"{name} gathers parameters of several dtypes, {_listed(dtypes)}, as bytes; give fully_shard "
            "a MixedPrecisionPolicy with a param_dtype, or pass weights=None to shards.compress"
        )


def _listed(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
