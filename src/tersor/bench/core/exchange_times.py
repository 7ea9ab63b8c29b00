"""How long one direction of an exchange between ranks took, as part of a result row."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from tersor.bench.core.row_checks import FromOne, require
from tersor.bench.core.timing import Percentiles

DIRECTIONS: Final = ("forward", "backward")
"""Looked-up rows, and their gradients."""
_LEAST_S: Final = 1e-12


class ExchangeTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One direction of an exchange; every time is that of the slowest rank of a round.

    Attributes:
        direction: one of ``DIRECTIONS``.
        network: ``"namespaces"`` for throttled links, ``"loopback"`` for none.
        link: bandwidth of each node's link in each direction, such as ``"1gbit"``; None where
            nothing throttles it.
        num_ranks: ranks that take part.
        ranks_per_node: ranks that share a node and its link; they talk over its loopback.
        batch: samples of all ranks.
        sizes_s: seconds to agree on sizes, 0 where all ranks know them; waiting for ranks that still
            encode is part of it.
        payload_s: seconds to send and receive payloads, and, where there were no sizes, to wait so.
        exchange_s: seconds of all phases together, encoding and decoding too.
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
        """Refuse what nothing can be divided by."""
        require("direction", self.direction in DIRECTIONS, " or ".join(DIRECTIONS))
        for times in (self.payload_s, self.exchange_s, self.step_s):
            require("a time", min(times.p20, times.p50, times.p80) >= _LEAST_S, "above 0 seconds")

    @property
    def place(self) -> str:
        """The network in words; two rows can be compared where it is the same."""
        return f"{self.num_ranks} ranks{self.node_words}, {self.link or self.network}"

    @property
    def node_words(self) -> str:
        """What a name says about nodes: nothing where every rank has its own."""
        return "" if self.ranks_per_node == 1 else f", {self.ranks_per_node} per node"
