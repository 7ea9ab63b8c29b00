"""Compression of DistributedDataParallel's gradients through a communication hook.

This module does not postpone annotations, because DDP compares the annotations of a hook with its own classes.
"""

from typing import Any, Final

import torch
import torch.distributed as dist

from tersor.comm import (
    Exchange,
    Place,
    RankLevels,
    check_distributed,
    check_same_everywhere,
)
from tersor.division import ceil_div
from tersor.errors import ExchangeError, SpecError
from tersor.sites.shards.gather import gather_rows
from tersor.sites.shards.gradients import GradientScatter
from tersor.sites.shards.hop import new_hop
from tersor.sites.shards.nodes import RanksPerNode, found_ranks_per_node
from tersor.sites.shards.options import Gradients, derive_seed
from tersor.sites.shards.state import check_origin
from tersor.sites.shards.stats import ShardStats

_DEFAULT: Final = Gradients()
_STATE_VERSION: Final = 2
_LAST_HOP: Final = 2
"""Distinguishes the seeds of the last hop from those of earlier hops."""


class DdpState:
    """The state of ``ddp_hook`` between buckets: options, connections, seeds and statistics.

    Attributes:
        gradients: compression of gradients.
        stats: statistics of this rank, which cover gradients only.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        gradients: Gradients = _DEFAULT,
        ranks_per_node: RanksPerNode = "auto",
    ) -> None:
        """Check that all ranks pass the same arguments. This is a collective call.

        Args:
            process_group: the process group of the model; None for all ranks.
            gradients: compression of gradients on the way to the rank that sums them. The mean is sent back in
                ``gradients.nbits``; error feedback does not cover its rounding error.
            ranks_per_node: number of consecutive ranks per node. ``"auto"`` detects it from torchrun's ``GROUP_RANK``
                and the host names.

        Raises:
            SpecError: ranks pass different arguments, or nodes have different numbers of ranks.
            ExchangeError: a rank has failed or left.
        """
        check_distributed()
        arguments = {"gradients": gradients, "ranks_per_node": ranks_per_node}
        check_same_everywhere(arguments, "shards.DdpState", process_group)
        self.gradients = gradients
        self.stats = ShardStats()
        self._group = process_group
        self._ranks_per_node = found_ranks_per_node(ranks_per_node, process_group)
        self._levels: RankLevels | None = None
        self._is_closed = False
        self._step = 0
        self._means: dict[int, BucketMean] = {}
        self._saved: dict[int, dict[str, Any]] = {}

    def mean(self, index: int, gradients: torch.Tensor, *, is_last: bool) -> None:
        """Replace a flat bucket of gradients with the mean over all ranks. This is a collective call.

        Raises:
            ExchangeError: a peer failed, or this state was closed.
        """
        if self._is_closed:
            raise ExchangeError("this shards.DdpState was closed before; make a new one")
        if self._levels is None:
            self._levels = RankLevels(self._group, self._ranks_per_node, gradients.device)
        known = self._means.get(index)
        if known is None or known.numel != gradients.numel():
            # DDP rebuilds its buckets after the first backward, which discards the errors of the old ones
            known = BucketMean(self.gradients, self._levels.place, index, gradients.numel())
            self._means[index] = known
            if self._saved.get(index, {}).get("numel") == known.numel:
                known.scatter.load_state_dict(self._saved.pop(index))
        known.scatter.step = self._step
        traffic = self.stats.gradients
        exchange = traffic.counted(known.all_reduce(gradients), known.place, gradients.device)
        self._levels.run(exchange, "mean of gradients")
        if is_last:
            self._step += 1
            self.stats.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, from which training resumes with the next seeds and the rounding errors so far."""
        means = self._means.items()
        saved = {k: {"numel": one.numel, **one.scatter.state_dict()} for k, one in means}
        version = {"version": _STATE_VERSION, "origin": self._origin()}
        return {**version, "step": self._step, "buckets": saved}

    def _origin(self) -> str:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        return f"rank {rank} of {world_size}, with gradients={self.gradients}"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of this rank.

        Raises:
            SpecError: ``state`` is not a state of this class, or belongs to another rank or other options.
        """
        if state.get("version") != _STATE_VERSION:
            raise SpecError("this is no state of shards.DdpState; give one of its state_dict()")
        check_origin(state["origin"], self._origin())
        self._step, self._saved = state["step"], dict(state["buckets"])
        self._means.clear()

    def close(self) -> None:
        """Disconnect from the other ranks; every later call of ``mean`` fails."""
        self._is_closed = True
        if self._levels is not None:
            self._levels.close()


class BucketMean:
    """The all-reduce of one bucket: each rank computes one part of the mean and sends it to all ranks."""

    def __init__(self, options: Gradients, place: Place, index: int, numel: int) -> None:
        """Prepare for a bucket of ``numel`` values; ``index`` and ``numel`` are the same on all ranks."""
        self.options, self.place, self.numel = options, place, numel
        self.index = index
        self.scatter = GradientScatter(options, place, index)

    def all_reduce(self, x: torch.Tensor) -> Exchange[None]:
        """Replace flat ``x`` with its mean over ranks, bit-identical on all of them."""
        place, options = self.place, self.options
        size = ceil_div(self.numel, place.world_size)
        seed = derive_seed(options.seed, self.scatter.step, place.rank, self.index)
        # the last part is padded with zeros, which never raise the scale of a group
        rows = x.new_zeros(place.world_size, size)
        rows.view(-1)[: self.numel] = x
        own = torch.empty(size, device=x.device)
        yield from self.scatter.reduce_scatter(rows, own)
        own.div_(place.world_size)
        hop = new_hop((1, 1, size), options.nbits, options.group, x.dtype, x.device)
        hop.write(own.view(1, 1, size), derive_seed(seed, _LAST_HOP), hadamard=options.hadamard)
        # this includes the rank's own part, decoded as the other ranks decode it
        for part, ranks in (yield from gather_rows(hop, place, rows[0].nbytes)):
            part.read_rows(rows[ranks], hadamard=options.hadamard)
        x.copy_(rows.view(-1)[: self.numel])


def ddp_hook(
    state: DdpState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average the gradients of a bucket with compression; pass this to ``register_comm_hook``.

    Example::

        model = DistributedDataParallel(model)
        model.register_comm_hook(shards.DdpState(), shards.ddp_hook)
    """
    x = bucket.buffer()
    state.mean(bucket.index(), x, is_last=bucket.is_last())
    devices = [x.device] if x.device.type == "cuda" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(x)
    return future
