"""Times of one direction of an exchange between ranks, as part of a result row."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tersor.bench.core.row_checks import FromOne, require
from tersor.bench.core.timing import Percentiles

DIRECTIONS: Final = ("forward", "backward")
"""Forward sends looked-up rows, backward sends their gradients."""
_LEAST_S: Final = 1e-12


class ExchangeTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One direction of an exchange; every time is that of the slowest rank of a round.

    Attributes:
        direction: one of ``DIRECTIONS``.
        network: ``"namespaces"`` for throttled links, ``"loopback"`` for none.
        link: bandwidth of each node's link in each direction, such as ``"1gbit"``; None if it is
            not throttled.
        num_ranks: ranks that take part.
        ranks_per_node: ranks that share a node and its link; they communicate over its loopback.
        batch: samples of all ranks.
        sizes_s: seconds to exchange sizes, including the wait for ranks that are still encoding; 0 if
            all ranks know the sizes.
        payload_s: seconds to send and receive payloads. Without an exchange of sizes, this includes
            the wait for ranks that are still encoding.
        exchange_s: seconds of all phases together, including encoding and decoding.
        step_s: seconds of a whole training step with this exchange in both directions.
    """

    direction: str
    network: str
    link: str | None
    num_ranks: FromOne
    ranks_per_node: FromOne = 1
    batch: FromOne
    sizes_s: Percentiles
    payload_s: Percentiles
    exchange_s: Percentiles
    step_s: Percentiles

    def __post_init__(self) -> None:
        """Reject an unknown direction, and times too small to divide by."""
        require("direction", self.direction in DIRECTIONS, " or ".join(DIRECTIONS))
        for times in (self.payload_s, self.exchange_s, self.step_s):
            require("a time", min(times.p20, times.p50, times.p80) >= _LEAST_S, "above 0 seconds")

    @property
    def place(self) -> str:
        """The network in words; rows are comparable if it is the same."""
        return f"{self.num_ranks} ranks{self.node_words}, {self.link or self.network}"

    @property
    def node_words(self) -> str:
        """The ranks per node in words; empty if every rank has its own node."""
        return "" if self.ranks_per_node == 1 else f", {self.ranks_per_node} per node"
