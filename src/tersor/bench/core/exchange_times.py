"""How long one direction of an exchange between ranks took, as part of a result row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from tersor.bench.core.timing import Percentiles
from tersor.errors import SpecError

DIRECTIONS: Final = ("forward", "backward")
"""Looked-up rows, and their gradients."""
_TIMES: Final = ("sizes_s", "payload_s", "exchange_s", "step_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeTimes:
    """One direction of an exchange; every time is that of the slowest rank of a round.

    Attributes:
        direction: one of ``DIRECTIONS``.
        network: ``"namespaces"`` for throttled links, ``"loopback"`` for none.
        link: bandwidth of each rank's link in each direction, such as ``"1gbit"``; None where
            nothing throttles it.
        num_ranks: ranks that take part.
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
    num_ranks: int
    batch: int
    sizes_s: Percentiles
    payload_s: Percentiles
    exchange_s: Percentiles
    step_s: Percentiles

    @property
    def place(self) -> str:
        """The network in words; two rows can be compared where it is the same."""
        return f"{self.num_ranks} ranks, {self.link or self.network}"

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {name: values[name].to_config() for name in _TIMES}

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Rebuild from the JSON form; anything unexpected raises ``SpecError``."""
        if not isinstance(config, Mapping) or set(config) != {f.name for f in fields(cls)}:
            raise SpecError("the times of an exchange have other fields")
        times = {name: Percentiles.from_config(config[name]) for name in _TIMES}
        return cls(**{**config, **times})
