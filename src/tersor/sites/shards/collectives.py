"""All-gather and reduce-scatter in few bits, for loops of one's own."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

from tersor.codecs.group import check_seed
from tersor.comm import Exchange
from tersor.errors import SpecError
from tersor.sites.shards.gather import gather_rows
from tersor.sites.shards.gradients import GradientScatter
from tersor.sites.shards.hop import Coded
from tersor.sites.shards.nodes import Connection, run_connected
from tersor.sites.shards.options import Gradients, check_group, seed_of

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
    its ranks; every rank gives the same sizes and options.

    Args:
        out: contiguous; as many values as all ranks have.
        x: contiguous, of the dtype of ``out``: float32, float16 or bfloat16.
        group: whose ranks take part; None for all.
        nbits: 4 or 8 per value.
        group_size: values per scale.
        seed: of stochastic rounding, mixed with the rank; give another in each step. None rounds to the
            nearest.

    Raises:
        SpecError: tensors or options that cannot be gathered.
        ExchangeError: a peer failed.
    """

    def exchange(connection: Connection) -> Exchange[None]:
        place = connection.levels.place
        if nbits not in (4, 8):
            raise SpecError(f"nbits must be 4 or 8, not {nbits!r}")
        check_group(group_size, "group_size")
        check_seed(seed)
        _check(out, x, out.numel(), place.world_size * x.numel(), "a part for each rank")
        if not x.numel():
            return
        hop = Coded.empty((1, 1, x.numel()), nbits, group_size, x.device)
        own = None if seed is None else seed_of(seed, place.rank)
        hop.write(x.view(1, 1, -1), own, hadamard=False)
        for part, ranks in (yield from gather_rows(hop, place, x.nbytes)):
            part.read_rows(out.view(place.world_size, -1)[ranks])

    run_connected(group, 1, x.device, exchange)


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

    The first call of a process group connects its ranks; every rank gives the same sizes and options.
    Each call rounds with seeds of its own, which follow from ``gradients.seed``.

    Args:
        out: contiguous; the number of values of one part.
        x: contiguous; a part of equal size for each rank, in their order: float32, float16 or bfloat16.
        op: ``ReduceOp.SUM`` or ``ReduceOp.AVG``; sums are made in float32.
        group: whose ranks take part; None for all.
        gradients: how many bits travel. ``error_feedback`` is refused: nothing is remembered.
        ranks_per_node: how many consecutive ranks share a node, whose ranks add up first.

    Raises:
        SpecError: tensors or options that cannot be reduced.
        ExchangeError: a peer failed.
    """

    def exchange(connection: Connection) -> Exchange[None]:
        place = connection.levels.place
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise SpecError(
                f"values can be summed or averaged, not reduced with {op}; give ReduceOp.SUM or ReduceOp.AVG"
            )
        if gradients.error_feedback:
            raise SpecError(
                "quantized_reduce_scatter remembers nothing between calls; give "
                "Gradients(error_feedback=0), or use shards.compress or shards.ddp_hook"
            )
        _check(out, x, place.world_size * out.numel(), x.numel(), "a part for each rank")
        if not x.numel():
            return
        scatter = GradientScatter(gradients, place)
        scatter.step = connection.num_exchanges
        yield from scatter.reduce_scatter(x, out)
        if op == dist.ReduceOp.AVG:
            out.div_(place.world_size)

    run_connected(group, ranks_per_node, x.device, exchange)


def _check(out: torch.Tensor, x: torch.Tensor, found: int, wanted: int, what: str) -> None:
    """Raise ``SpecError`` unless both tensors can take part."""
    for name, tensor in (("out", out), ("x", x)):
        if tensor.dtype not in _FLOATS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise SpecError(
                f"{name} must be float32, float16 or bfloat16, not {dtype}; convert it with {name}.float()"
            )
        if not tensor.is_contiguous():
            raise SpecError(f"{name} must be contiguous; give {name}.contiguous()")
        if tensor.requires_grad:
            raise SpecError(
                f"{name} requires a gradient, which would stop here; give {name}.detach()"
            )
    if (out.dtype, out.device) != (x.dtype, x.device):
        raise SpecError(
            f"out is {out.dtype} on {out.device}, x is {x.dtype} on {x.device}; give both the same"
        )
    if found != wanted:
        raise SpecError(
            f"out has {out.numel()} values and x {x.numel()}, where the larger must hold {what}; "
            "pad x to a multiple of the ranks"
        )
