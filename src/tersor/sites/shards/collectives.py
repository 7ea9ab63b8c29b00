"""All-gather and reduce-scatter in few bits, for loops of one's own."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

from tersor.codecs.group import check_seed
from tersor.comm import Exchange, Place
from tersor.comm.levels import check_ranks_per_node
from tersor.errors import SpecError
from tersor.sites.shards.connection import connected
from tersor.sites.shards.gather import gather_rows
from tersor.sites.shards.gradients import GradientScatter
from tersor.sites.shards.hop import Coded
from tersor.sites.shards.options import CODED_BITS, Gradients, check_group, seed_of

_DEFAULT: Final = Gradients()
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


def quantized_all_gather(
    out: torch.Tensor,
    x: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    nbits: int = 4,
    group_size: int = 2048,
    seed: int | None = None,
) -> None:
    """Write what all ranks have in ``x`` into ``out``, in their order; a collective call.

    Every rank gets the same values, also of its own part. The first call of a process group connects
    its ranks; ranks compare in every call whether all of them give the same sizes and options.

    Args:
        out: contiguous; as many values as all ranks have.
        x: contiguous, of the dtype of ``out``: float32, float16 or bfloat16.
        group: whose ranks take part; None for all.
        nbits: 4 or 8 per value.
        group_size: values per scale.
        seed: of stochastic rounding, mixed with the rank; give another in each step. None rounds to the
            nearest. Ranks may differ in it.

    Raises:
        SpecError: tensors or options that cannot be gathered, or ranks that differ.
        ExchangeError: a peer failed.
    """
    call = "quantized_all_gather"

    def describe() -> dict[str, object]:
        if nbits not in CODED_BITS:
            raise SpecError(f"nbits must be 4 or 8, not {nbits!r}")
        check_group(group_size, "group_size")
        check_seed(seed)
        _check_tensors(out, x)
        wanted = dist.get_world_size(group) * x.numel()
        if out.numel() != wanted:
            raise SpecError(
                f"out has {out.numel()} values, and ranks with {x.numel()} values each need {wanted}; "
                f"give out {wanted} values"
            )
        return {"function": call, "nbits": nbits, "group_size": group_size, "x": _form(x)}

    with connected(group, x.device, describe) as connection:
        if x.numel():
            levels = connection.levels(group, 1, x.device)
            levels.run(_gather(out, x, levels.place, nbits, group_size, seed), call)


def _gather(
    out: torch.Tensor, x: torch.Tensor, place: Place, nbits: int, group_size: int, seed: int | None
) -> Exchange[None]:
    hop = Coded.empty((1, 1, x.numel()), nbits, group_size, x.device)
    own = None if seed is None else seed_of(seed, place.rank)
    hop.write(x.view(1, 1, -1), own, hadamard=False)
    for part, ranks in (yield from gather_rows(hop, place, x.nbytes)):
        part.read_rows(out.view(place.world_size, -1)[ranks])


def quantized_reduce_scatter(
    out: torch.Tensor,
    x: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    gradients: Gradients = _DEFAULT,
    ranks_per_node: int = 1,
) -> None:
    """Write this rank's part of the sum, or mean, of ``x`` over all ranks into ``out``; a collective call.

    The first call of a process group connects its ranks; ranks compare in every call whether all of them
    give the same sizes and options. Each call rounds with seeds of its own, which follow from
    ``gradients.seed``.

    Args:
        out: contiguous; the number of values of one part.
        x: contiguous; a part of equal size for each rank, in their order: float32, float16 or bfloat16.
        op: ``ReduceOp.SUM`` or ``ReduceOp.AVG``; sums are made in float32.
        group: whose ranks take part; None for all.
        gradients: how many bits travel. ``error_feedback`` is refused: nothing is remembered.
        ranks_per_node: how many consecutive ranks share a node, whose ranks add up first.

    Raises:
        SpecError: tensors or options that cannot be reduced, or ranks that differ.
        ExchangeError: a peer failed.
    """
    call = "quantized_reduce_scatter"
    is_mean = op == dist.ReduceOp.AVG

    def describe() -> dict[str, object]:
        _check_reduction(op, gradients)
        _check_tensors(out, x)
        num_ranks = dist.get_world_size(group)
        check_ranks_per_node(ranks_per_node, num_ranks)
        if x.numel() != num_ranks * out.numel():
            raise SpecError(
                f"x has {x.numel()} values, not one part of {out.numel()} for each rank; pad x to "
                f"{num_ranks} parts of {out.numel()} values, or give out another size"
            )
        options = {"gradients": gradients, "ranks_per_node": ranks_per_node, "x": _form(x)}
        return {"function": call, "op": "AVG" if is_mean else "SUM", **options}

    with connected(group, x.device, describe) as connection:
        if x.numel():
            levels = connection.levels(group, ranks_per_node, x.device)
            scatter = GradientScatter(gradients, levels.place)
            scatter.step = connection.num_exchanges
            levels.run(scatter.reduce_scatter(x, out), call)
            if is_mean:
                out.div_(levels.place.world_size)


def _check_reduction(op: Any, gradients: object) -> None:
    """Raise ``SpecError`` unless values can be reduced so without being remembered."""
    if not isinstance(gradients, Gradients):
        raise SpecError(f"gradients must be Gradients(...), not {gradients!r}")
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise SpecError(
            f"values can be summed or averaged, not reduced with {op}; give ReduceOp.SUM or ReduceOp.AVG"
        )
    if gradients.error_feedback:
        raise SpecError(
            "quantized_reduce_scatter remembers nothing between calls; give "
            "Gradients(error_feedback=0), or use shards.compress or shards.ddp_hook"
        )


def _form(x: torch.Tensor) -> tuple[int, torch.dtype, str]:
    """Return what ranks must have in common of a tensor: each has a device of its own number."""
    return x.numel(), x.dtype, x.device.type


def _check_tensors(out: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ``SpecError`` unless both tensors can take part."""
    for name, tensor in (("out", out), ("x", x)):
        if tensor.dtype not in _FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise SpecError(
                f"{name} must be float32, float16 or bfloat16, not {dtype}; make it one of these"
            )
        if not tensor.is_contiguous():
            raise SpecError(f"{name} must be contiguous; give a contiguous tensor")
        if tensor.requires_grad:
            raise SpecError(
                f"{name} requires a gradient, which would stop here; give {name}.detach()"
            )
    if (out.dtype, out.device) != (x.dtype, x.device):
        raise SpecError(
            f"out is {out.dtype} on {out.device}, x is {x.dtype} on {x.device}; give both the same"
        )
