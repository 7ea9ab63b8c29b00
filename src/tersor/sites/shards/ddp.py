"""Gradients of DistributedDataParallel in few bits, by a communication hook.

This module does not postpone annotations: DDP compares those of a hook with its own classes.
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
from tersor.sites.shards.options import Gradients, seed_of
from tersor.sites.shards.state import check_origin
from tersor.sites.shards.stats import ShardStats

_DEFAULT: Final = Gradients()
_STATE_VERSION: Final = 2
_LAST_HOP: Final = 2
"""Tells its seeds from those of the hops before it."""


class DdpState:
    """What ``ddp_hook`` keeps between buckets: options, connections, seeds and statistics.

    Attributes:
        gradients: how they travel.
        stats: of this rank; all of it is about gradients.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        gradients: Gradients = _DEFAULT,
        ranks_per_node: RanksPerNode = "auto",
    ) -> None:
        """Agree with all ranks; a collective call.

        Args:
            process_group: that of the model; None for all ranks.
            gradients: how they travel to the rank that adds them up. The mean travels back in
                ``gradients.nbits``, and what its rounding loses is not remembered.
            ranks_per_node: how many consecutive ranks share a node; ``"auto"`` asks torchrun, or else
                compares the names of the hosts.

        Raises:
            SpecError: ranks give different arguments, or nodes do not hold equally many.
            ExchangeError: a rank is gone.
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
        """Replace a flat bucket of gradients by the mean over all ranks; a collective call.

        Raises:
            ExchangeError: a peer failed, or this state was closed.
        """
        if self._is_closed:
            raise ExchangeError("this shards.DdpState was closed before; make a new one")
        if self._levels is None:
            self._levels = RankLevels(self._group, self._ranks_per_node, gradients.device)
        known = self._means.get(index)
        if known is None or known.numel != gradients.numel():
            # DDP cuts other buckets after the first backward: what was lost of the old ones is given up
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
        """Return this rank's state: a training that loads it goes on with the next seeds."""
        means = self._means.items()
        saved = {k: {"numel": one.numel, **one.scatter.state_dict()} for k, one in means}
        version = {"version": _STATE_VERSION, "origin": self._origin()}
        return {**version, "step": self._step, "buckets": saved}

    def _origin(self) -> str:
        rank, world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        return f"rank {rank} of {world_size}, with gradients={self.gradients}"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of this rank.

        Raises:
            SpecError: it is not one, or one of another rank or of other options.
        """
        if state.get("version") != _STATE_VERSION:
            raise SpecError("this is no state of shards.DdpState; give one of its state_dict()")
        check_origin(state["origin"], self._origin())
        self._step, self._saved = state["step"], dict(state["buckets"])
        self._means.clear()

    def close(self) -> None:
        """Leave the other ranks; what follows fails."""
        self._is_closed = True
        if self._levels is not None:
            self._levels.close()


class BucketMean:
    """The mean over ranks of one bucket: each rank makes a part of it, and sends it to all."""

    def __init__(self, options: Gradients, place: Place, index: int, numel: int) -> None:
        """Take the number of the bucket and of its values, the same on all ranks."""
        self.options, self.place, self.numel = options, place, numel
        self.index = index
        self.scatter = GradientScatter(options, place, index)

    def all_reduce(self, x: torch.Tensor) -> Exchange[None]:
        """Replace flat ``x`` by its mean, with the same bits on every rank."""
        place, options = self.place, self.options
        size = ceil_div(self.numel, place.world_size)
        seed = seed_of(options.seed, self.scatter.step, place.rank, self.index)
        # zeros fill the last part: they are smaller than any value beside them
        rows = x.new_zeros(place.world_size, size)
        rows.view(-1)[: self.numel] = x
        own = torch.empty(size, device=x.device)
        yield from self.scatter.reduce_scatter(rows, own)
        own.div_(place.world_size)
        hop = new_hop((1, 1, size), options.nbits, options.group, x.dtype, x.device)
        hop.write(own.view(1, 1, size), seed_of(seed, _LAST_HOP), hadamard=options.hadamard)
        # also this rank's own part, as the others have it
        for part, ranks in (yield from gather_rows(hop, place, rows[0].nbytes)):
            part.read_rows(rows[ranks], hadamard=options.hadamard)
        x.copy_(rows.view(-1)[: self.numel])


def ddp_hook(
    state: DdpState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average the gradients of a bucket in few bits: give it to ``register_comm_hook``.

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
