"""Times and bytes of steps whose ranks exchange weights and gradients, as part of a result row."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tersor.bench.core.row_checks import Count, FromOne, require
from tersor.bench.core.timing import Percentiles

WRAPPERS: Final = ("fsdp", "ddp")
_LEAST_S: Final = 1e-12


class ShardPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights or gradients of one step.

    Attributes:
        seconds: seconds of their exchanges, including coding, on the slowest rank; all ranks start
            together.
        link_nbytes: bytes that all nodes sent on their links, including headers, as the interfaces
            count; the median of all rounds. None if there are no links.
        node_nbytes: bytes that ranks sent within their nodes, or on loopback if there are no links, as
            the loopback interfaces count.
    """

    seconds: Percentiles
    link_nbytes: Count | None
    node_nbytes: Count


class ShardTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step; every time is that of the slowest rank of a round.

    Attributes:
        wrapper: one of ``WRAPPERS``.
        network: ``"namespaces"`` for throttled links, ``"loopback"`` for none.
        link: bandwidth of each node's link in each direction, such as ``"1gbit"``; None if it is
            not throttled.
        num_ranks: ranks that take part.
        ranks_per_node: ranks that share a node and its link; they communicate over its loopback.
        batch: sequences of all ranks.
        tokens: tokens of all ranks in a step.
        step_s: seconds of a whole step, including any overlap of exchanges that the wrapper provides.
        exchange_s: seconds of all exchanges of weights and gradients in a step.
        weights: the exchange of weights; None if they are not exchanged.
        gradients: the exchange of gradients.
    """

    wrapper: str
    network: str
    link: str | None
    num_ranks: FromOne
    ranks_per_node: FromOne
    batch: FromOne
    tokens: FromOne
    step_s: Percentiles
    exchange_s: Percentiles
    weights: ShardPart | None
    gradients: ShardPart

    def __post_init__(self) -> None:
        """Reject an unknown wrapper, and times too small to divide by."""
        require("wrapper", self.wrapper in WRAPPERS, " or ".join(WRAPPERS))
        for times in (self.exchange_s, self.step_s):
            require("a time", min(times.p20, times.p50, times.p80) >= _LEAST_S, "above 0 seconds")

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all ranks together, by the median step time."""
        return self.tokens / self.step_s.p50

    @property
    def place(self) -> str:
        """The network in words; rows are comparable if it is the same."""
        return (
            f"{self.num_ranks} ranks, {self.ranks_per_node} per node, {self.link or self.network}"
        )
