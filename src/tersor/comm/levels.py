"""Exchanges made of several collectives between ranks on nodes, across processes or within one.

An exchange is a generator that performs the work of one rank and yields each collective it takes part in.
The same exchange runs across processes (``RankLevels``), or for all ranks within one (``LocalRanks``).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.distributed as dist

from tersor.comm.group import RankGroup
from tersor.errors import ExchangeError, SpecError

Level = Literal["all", "node", "across"]
"""Participants: all ranks, those of one node, or those with the same local number on all nodes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a rank: nodes have equally many ranks, and the ranks of a node are consecutive."""

    rank: int
    num_nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        """Number of all ranks."""
        return self.num_nodes * self.ranks_per_node

    @property
    def node(self) -> int:
        """Number of the rank's node."""
        return self.rank // self.ranks_per_node

    @property
    def local(self) -> int:
        """Number of the rank within its node."""
        return self.rank % self.ranks_per_node

    def ranks(self, level: Level) -> list[int]:
        """Return the ranks in a collective of this rank at ``level``, in order."""
        if level == "node":
            first = self.node * self.ranks_per_node
            return list(range(first, first + self.ranks_per_node))
        if level == "across":
            return list(range(self.local, self.world_size, self.ranks_per_node))
        return list(range(self.world_size))

    @property
    def is_two_level(self) -> bool:
        """True if there are several nodes with several ranks each."""
        return min(self.num_nodes, self.ranks_per_node) > 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of an exchange; it fills ``received``.

    Attributes:
        kind: ``all_gather``, or ``all_to_all`` of equal parts.
        level: who takes part.
        received: contiguous; one part per rank of the level, in order.
        sent: contiguous, of the dtype of ``received``; in an all-gather it may alias this rank's part.
        original_nbytes: bytes of ``received`` without encoding.
    """

    kind: Literal["all_gather", "all_to_all"]
    level: Level
    received: torch.Tensor
    sent: torch.Tensor
    original_nbytes: int


Exchange = Generator[Collective, None, T]


class RankLevels:
    """The rank of this process, connected to its peers at every level."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        ranks_per_node: int,
        device: torch.device,
        everyone: RankGroup | None = None,
    ) -> None:
        """Connect to the ranks of each level; a collective call.

        Args:
            group: the ranks that take part; all ranks if None.
            ranks_per_node: number of consecutive ranks that share a node.
            device: of the tensors that are sent.
            everyone: an existing group of all ranks of ``group``, if there is one.

        Raises:
            SpecError: ``ranks_per_node`` does not divide the ranks evenly.
            ExchangeError: a rank could not connect.
        """
        world_size = dist.get_world_size(group)
        check_ranks_per_node(ranks_per_node, world_size)
        self.place = Place(dist.get_rank(group), world_size // ranks_per_node, ranks_per_node)
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        everyone = everyone or RankGroup(group, device, ())
        self._groups: dict[str, RankGroup] = {"all": everyone}
        levels: tuple[Literal["node", "across"], ...] = ("node", "across")
        for level in levels if self.place.is_two_level else ():
            parts = _parts(members, ranks_per_node, level)
            self._groups[level] = RankGroup(group, device, (), parts, everyone)

    def run(self, exchange: Exchange[T], phase: str = "exchange") -> T:
        """Run this rank's part of an exchange that all ranks run; return its result.

        An error raised by the exchange itself propagates unchanged, and the peers are notified.

        Args:
            exchange: the part of this rank.
            phase: name of the exchange in messages; it follows "the".

        Raises:
            ExchangeError: a peer failed.
        """
        with ExitStack() as stack:
            for group in self._groups.values():
                stack.enter_context(group.abort_on_error())
            while True:
                try:
                    step = next(exchange)
                except StopIteration as end:
                    found: T = end.value
                    return found
                group = self._groups[step.level]
                start = group.all_gather if step.kind == "all_gather" else group.all_to_all
                with group.explained(phase):
                    start(step.received.view(-1), step.sent.view(-1)).wait()

    def elementwise_max(self, numbers: Sequence[int], phase: str = "agreement") -> list[int]:
        """Return the elementwise maximum over all ranks; a collective call of the hosts."""
        with self._groups["all"].guarded(phase):
            return self._groups["all"].elementwise_max(numbers)

    def close(self) -> None:
        """Leave all groups; pending collectives of peers fail at once."""
        for group in self._groups.values():
            group.close()


def _parts(
    members: list[int], ranks_per_node: int, level: Literal["node", "across"]
) -> list[list[int]]:
    """Return the partition of the members into groups within nodes, or across them."""
    nodes = [members[k : k + ranks_per_node] for k in range(0, len(members), ranks_per_node)]
    return nodes if level == "node" else [list(ranks) for ranks in zip(*nodes, strict=True)]


class LocalRanks:
    """All ranks of several nodes, simulated one after the other in this process."""

    def __init__(self, num_nodes: int, ranks_per_node: int) -> None:
        """Create ``num_nodes * ranks_per_node`` ranks."""
        self.places = [
            Place(rank, num_nodes, ranks_per_node) for rank in range(num_nodes * ranks_per_node)
        ]

    def run(self, exchanges: Sequence[Exchange[T]]) -> list[T]:
        """Run the exchanges of all ranks in lockstep; return their results.

        Raises:
            ExchangeError: the ranks enter different collectives.
        """
        while True:
            steps: list[Collective] = []
            results: list[T] = []
            for exchange in exchanges:
                try:
                    steps.append(next(exchange))
                except StopIteration as end:
                    results.append(end.value)
            if not steps:
                return results
            # a part of another size would be broadcast to fill ``received``
            forms = {(x.kind, x.level, x.sent.dtype, x.sent.numel()) for x in steps}
            if results or len(forms) > 1 or not all(map(self._fits, self.places, steps)):
                raise ExchangeError("ranks take part in different collectives")
            self._move(steps)

    @staticmethod
    def _fits(place: Place, step: Collective) -> bool:
        """True if ``received`` has the dtype and size of what the ranks send."""
        times = len(place.ranks(step.level)) if step.kind == "all_gather" else 1
        same_dtype = step.received.dtype == step.sent.dtype
        return same_dtype and step.received.numel() == times * step.sent.numel()

    def _move(self, steps: Sequence[Collective]) -> None:
        # ``sent`` may alias ``received``, so it is copied before anything is written
        written = {step.received.untyped_storage().data_ptr() for step in steps}
        sent = [
            step.sent.clone() if step.sent.untyped_storage().data_ptr() in written else step.sent
            for step in steps
        ]
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for place, step in zip(self.places, steps, strict=True):
            peers = place.ranks(step.level)
            own = peers.index(place.rank)
            targets += step.received.view(len(peers), -1)
            for peer in peers:
                gathers = step.kind == "all_gather"
                sources.append(
                    sent[peer].view(1 if gathers else len(peers), -1)[0 if gathers else own]
                )
        # one launch for all copies on a GPU
        torch._foreach_copy_(targets, sources)


def check_ranks_per_node(ranks_per_node: int, world_size: int) -> None:
    """Raise ``SpecError`` unless ``ranks_per_node`` divides ``world_size``."""
    if type(ranks_per_node) is not int or ranks_per_node < 1 or world_size % ranks_per_node:
        raise SpecError(
            f"ranks_per_node must divide the {world_size} ranks into equal nodes, not be "
            f"{ranks_per_node!r}"
        )
