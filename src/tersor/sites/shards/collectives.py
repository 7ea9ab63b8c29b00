"""Quantized all-gather and reduce-scatter, for custom training loops."""

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
from tersor.sites.shards.options import CODED_BITS, Gradients, check_group, derive_seed

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
    """Gather ``x`` of all ranks into ``out``, in rank order. This is a collective call.

    Every rank receives the same values, including for its own part. The first call in a process group connects its
    ranks. In every call, ranks check that their sizes and options agree.

    Args:
        out: contiguous, with as many values as all ranks have in ``x`` together.
        x: contiguous, of the dtype of ``out``: float32, float16 or bfloat16.
        group: the process group; None for all ranks.
        nbits: bits per value, 4 or 8.
        group_size: values per scale.
        seed: seed of stochastic rounding, mixed with the rank; use a different one in each step. None rounds to
            nearest. Ranks may pass different seeds.

    Raises:
        SpecError: tensors or options are invalid, or differ between ranks.
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
    own = None if seed is None else derive_seed(seed, place.rank)
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
    """Sum or average ``x`` over all ranks, and write this rank's part into ``out``. This is a collective call.

    The first call in a process group connects its ranks. In every call, ranks check that their sizes and options agree.
    Each call rounds with its own seeds, derived from ``gradients.seed``.

    Args:
        out: contiguous, with the size of one part.
        x: contiguous, one part of equal size per rank, in rank order: float32, float16 or bfloat16.
        op: ``ReduceOp.SUM`` or ``ReduceOp.AVG``; sums are computed in float32.
        group: the process group; None for all ranks.
        gradients: bits per value and further options. ``error_feedback`` must be 0, because no state is kept between
            calls.
        ranks_per_node: number of consecutive ranks per node; the ranks of a node are summed first.

    Raises:
        SpecError: tensors or options are invalid, or differ between ranks.
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
    """Raise ``SpecError`` unless the reduction is supported and needs no state between calls."""
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
    """Return the properties of a tensor that ranks must agree on; device indices may differ."""
    return x.numel(), x.dtype, x.device.type


def _check_tensors(out: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ``SpecError`` unless both tensors can take part in the collective."""
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
