"""Exchanges of several collectives among ranks on nodes, run by processes or within one.

An exchange is a generator: what one rank does, which yields each collective it takes part in. The same
exchange runs among processes (``RankLevels``), and for all ranks at once in one process (``LocalRanks``).
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
"""Who takes part: all ranks, those of a node, or those of all nodes that have the same place in theirs."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is: nodes hold equally many, and ranks of a node follow each other."""

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
        """Number of the rank in its node."""
        return self.rank % self.ranks_per_node

    def ranks(self, level: Level) -> list[int]:
        """Return the ranks that take part in a collective of this rank, in order."""
        if level == "node":
            first = self.node * self.ranks_per_node
            return list(range(first, first + self.ranks_per_node))
        if level == "across":
            return list(range(self.local, self.world_size, self.ranks_per_node))
        return list(range(self.world_size))

    @property
    def is_two_level(self) -> bool:
        """True if there are several nodes of several ranks."""
        return min(self.num_nodes, self.ranks_per_node) > 1


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of an exchange; it fills ``received``.

    Attributes:
        kind: ``all_gather`` of all that is sent, or ``all_to_all`` of equal parts.
        level: who takes part.
        received: contiguous; a part for each rank of the level, in their order.
        sent: contiguous, of the dtype of ``received``; of an all-gather it may be the rank's part of it.
        original_nbytes: what ``received`` would take if it were not encoded.
    """

    kind: Literal["all_gather", "all_to_all"]
    level: Level
    received: torch.Tensor
    sent: torch.Tensor
    original_nbytes: int


Exchange = Generator[Collective, None, T]


class RankLevels:
    """This process among all ranks of a process group, on the levels of its place."""

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        ranks_per_node: int,
        device: torch.device,
        everyone: RankGroup | None = None,
    ) -> None:
        """Connect to the ranks of each level; a collective call.

        Args:
            group: whose ranks take part; None for all.
            ranks_per_node: how many consecutive ranks share a node.
            device: of the tensors that are sent.
            everyone: all ranks of ``group``, where they are connected already.

        Raises:
            SpecError: nodes do not hold equally many.
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
        """Take part in an exchange that all ranks run.

        An error of the exchange itself stays what it is, and the peers are told.

        Args:
            exchange: what this rank does.
            phase: what messages call it, after "the".

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

    def largest(self, numbers: Sequence[int], phase: str = "agreement") -> list[int]:
        """Return the largest of each number over all ranks; a collective call of their hosts."""
        with self._groups["all"].guarded(phase):
            return self._groups["all"].largest(numbers)

    def close(self) -> None:
        """Leave all groups; what peers still wait for fails at once."""
        for group in self._groups.values():
            group.close()


def _parts(
    members: list[int], ranks_per_node: int, level: Literal["node", "across"]
) -> list[list[int]]:
    """Return the members that meet each other in their nodes or across them."""
    nodes = [members[k : k + ranks_per_node] for k in range(0, len(members), ranks_per_node)]
    return nodes if level == "node" else [list(ranks) for ranks in zip(*nodes, strict=True)]


class LocalRanks:
    """All ranks of some nodes, one after the other in this process."""

    def __init__(self, num_nodes: int, ranks_per_node: int) -> None:
        """Make ``num_nodes`` times ``ranks_per_node`` ranks."""
        self.places = [
            Place(rank, num_nodes, ranks_per_node) for rank in range(num_nodes * ranks_per_node)
        ]

    def run(self, exchanges: Sequence[Exchange[T]]) -> list[T]:
        """Run the exchange of every rank, in step; return what each returns.

        Raises:
            ExchangeError: ranks do not take part in the same collectives.
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
            # a part of another size would be repeated to fill what is received
            forms = {(x.kind, x.level, x.sent.dtype, x.sent.numel()) for x in steps}
            if results or len(forms) > 1 or not all(map(self._fits, self.places, steps)):
                raise ExchangeError("ranks take part in different collectives")
            self._move(steps)

    @staticmethod
    def _fits(place: Place, step: Collective) -> bool:
        """True if what is received has the dtype and size of what is sent to a rank."""
        times = len(place.ranks(step.level)) if step.kind == "all_gather" else 1
        same_dtype = step.received.dtype == step.sent.dtype
        return same_dtype and step.received.numel() == times * step.sent.numel()

    def _move(self, steps: Sequence[Collective]) -> None:
        # what is sent may be part of what is received: it is copied before anything is written
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
        # one launch for all on a GPU
        torch._foreach_copy_(targets, sources)


def check_ranks_per_node(ranks_per_node: int, world_size: int) -> None:
    """Raise ``SpecError`` unless nodes of so many ranks make up the world."""
    if type(ranks_per_node) is not int or ranks_per_node < 1 or world_size % ranks_per_node:
        raise SpecError(
            f"ranks_per_node must divide the {world_size} ranks into equal nodes, not be "
            f"{ranks_per_node!r}"
        )
