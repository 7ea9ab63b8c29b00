"""One collective of a training step with its codec, and how long each of its phases takes.

For a collective of n original bytes in k passes, with what ``collectives`` counts::

    transfer = encode + sizes + payload + decode + rest
    encode   = a + b * (original bytes that a rank encodes), call by call; decode and rest alike
    w        = n / ratio                                     bytes after encoding
    sizes    = k * s + L                                     0 where every rank knows them
    payload  = k * p + L + k * max(8 * near / B_intra, 8 * far / B_inter) / e + k * h * sent,
               and u where there were no sizes
    L        = the latency of all messages

``a``, ``b`` and ``ratio`` are a codec's, measured; ``s``, ``p``, ``u`` (waiting for the slowest rank, else
a part of ``s``), ``h`` (a host's cost per byte sent), ``rest`` and ``e`` (the share of a link that is
reached) belong to a machine and its library of collectives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tersor.errors import SpecError
from tersor.planning.cluster import Cluster
from tersor.planning.collectives import Collective, Pattern, Scope, Traffic, latency_s
from tersor.planning.curves import Line, RatioCurve


@dataclass(frozen=True, slots=True)
class CodecCosts:
    """What a codec costs.

    Attributes:
        encode: seconds by the original bytes of a call.
        decode: the same.
        ratio: original over encoded bytes.
        has_sizes: whether sizes are exchanged before payloads.
    """

    encode: Line
    decode: Line
    ratio: RatioCurve
    has_sizes: bool = True

    @classmethod
    def fit(
        cls,
        encode: Iterable[tuple[float, float]],
        decode: Iterable[tuple[float, float]],
        ratios: Mapping[float, float] | float,
        *,
        has_sizes: bool = True,
    ) -> CodecCosts:
        """Fit measurements.

        Args:
            encode: original bytes and seconds of calls.
            decode: the same.
            ratios: by rows per slice, or one that depends on nothing.
            has_sizes: see ``CodecCosts``.
        """
        curve = RatioCurve.of(ratios) if isinstance(ratios, Mapping) else RatioCurve.fixed(ratios)
        return cls(Line.fit(encode), Line.fit(decode), curve, has_sizes)


UNCODED: Final = CodecCosts(Line(), Line(), RatioCurve.fixed(1.0), has_sizes=False)
"""Bytes that travel as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """What a machine and its collectives cost beyond latency and bandwidth.

    Attributes:
        sizes_s: of an exchange of sizes.
        payload_s: of a pass of payloads.
        unready_s: more of a transfer that no exchange of sizes went before: ranks wait for the slowest
            there.
        host_s_per_byte: of each byte sent.
        rest: seconds that are in none of the phases, by original bytes of a rank, per name of a transfer.
        efficiency: share of a link's bandwidth that collectives reach.
    """

    sizes_s: float = 0.0
    payload_s: float = 0.0
    unready_s: float = 0.0
    host_s_per_byte: float = 0.0
    rest: Mapping[str, Line] = field(default_factory=dict)
    efficiency: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Predicted seconds of one transfer; ``is_beyond`` where the ratio is a guess."""

    encode_s: float = 0.0
    sizes_s: float = 0.0
    payload_s: float = 0.0
    decode_s: float = 0.0
    rest_s: float = 0.0
    ratio: float
    is_beyond: bool

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.payload_s + self.coding_s

    @property
    def coding_s(self) -> float:
        """All but payloads on their way."""
        return self.encode_s + self.sizes_s + self.decode_s + self.rest_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective of a step.

    Attributes:
        name: of it, unique in its step.
        collective: what ranks do.
        nbytes: original bytes of each rank: all that it has for the others and itself in an all-to-all,
            the whole result of an all-gather, the whole input of a reduce-scatter or all-reduce.
        costs: of its codec.
        slice_rows: rows of a slice, by which the codec's ratio is known.
        pattern: who sends to whom; None for a ring, but pairwise for an all-to-all and for sums of
            encoded values.
        scope: which ranks take part.
        overlap: share of the time that payloads travel during which ranks compute.
        transport: what the machine costs.
        count: how many such collectives a step has, one after the other, each with ``nbytes``.
    """

    name: str
    collective: Collective
    nbytes: float
    costs: CodecCosts = UNCODED
    slice_rows: float = 1.0
    pattern: Pattern | None = None
    scope: Scope = Scope.ALL
    overlap: float = 0.0
    transport: Transport = field(default_factory=Transport)
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse what no collective does."""
        if self.count < 1:
            raise SpecError(f"{self.name}: a step has 1 such collective at least, not {self.count}")
        if not 0 <= self.nbytes < math.inf or not 0 <= self.overlap <= 1:
            raise SpecError(
                f"{self.name}: bytes are from 0 and an overlap is from 0 to 1, not {self.nbytes} and "
                f"{self.overlap}"
            )
        if self.pattern is Pattern.RING and self.collective is Collective.ALL_TO_ALL:
            raise SpecError(f"{self.name}: an all-to-all is pairwise, not a ring")
        if self.pattern is Pattern.RING and self._is_coded_sum:
            raise SpecError(
                f"{self.name}: a ring adds at every hop, and would decode and encode there; a "
                f"{self.collective.value} of encoded values is pairwise"
            )

    @property
    def _is_coded_sum(self) -> bool:
        return self.collective.is_sum and self.costs != UNCODED

    @property
    def used_pattern(self) -> Pattern:
        """The pattern, where None was given too."""
        if self.pattern is not None:
            return self.pattern
        is_pairwise = self.collective is Collective.ALL_TO_ALL or self._is_coded_sum
        return Pattern.PAIRWISE if is_pairwise else Pattern.RING

    def sent(self, cluster: Cluster, num_ranks: int) -> Traffic:
        """Return the encoded bytes that one pass of one collective sends over each link."""
        group, members = self.scope.group(cluster, num_ranks)
        nbytes = self.nbytes / self.costs.ratio.at(self.slice_rows)
        return Traffic.of(self.used_pattern, nbytes, group, members)

    def leaving_nbytes(self, cluster: Cluster, num_ranks: int) -> float:
        """Return the encoded bytes that leave each node, in all passes of all ``count`` collectives."""
        # between nodes there is a group for each place on one
        between = self.scope is Scope.BETWEEN_NODES
        num_groups = cluster.local_ranks(num_ranks) if between else 1
        times = self.count * self.collective.num_passes * num_groups
        return times * self.sent(cluster, num_ranks).far_nbytes

    def phases(self, cluster: Cluster, num_ranks: int) -> Phases:
        """Return what all ``count`` of them take; the formula stands at the top of this module."""
        costs, transport = self.costs, self.transport
        group, members = self.scope.group(cluster, num_ranks)
        ratio, is_beyond = costs.ratio.at(self.slice_rows), costs.ratio.is_beyond(self.slice_rows)
        if members == 1:
            # nothing leaves a rank that is alone
            return Phases(ratio=ratio, is_beyond=is_beyond)
        passes = self.collective.num_passes
        delay_s = latency_s(self.collective, self.used_pattern, group, members)
        fixed_s = passes * transport.payload_s + (0.0 if costs.has_sizes else transport.unready_s)
        sent = self.sent(cluster, num_ranks)
        link_s = sent.seconds(group) / transport.efficiency
        host_s = transport.host_s_per_byte * sent.rank_nbytes
        encoded, decoded = self.collective.coded_nbytes(self.nbytes, members)
        sizes_s = passes * transport.sizes_s + delay_s if costs.has_sizes else 0.0
        return Phases(
            encode_s=self.count * sum(costs.encode.at(nbytes) for nbytes in encoded),
            sizes_s=self.count * sizes_s,
            payload_s=self.count * (fixed_s + delay_s + passes * (link_s + host_s)),
            decode_s=self.count * sum(costs.decode.at(nbytes) for nbytes in decoded),
            rest_s=self.count * transport.rest.get(self.name, Line()).at(self.nbytes),
            ratio=ratio,
            is_beyond=is_beyond,
        )


def hierarchical(
    name: str,
    collective: Collective,
    nbytes: float,
    local_ranks: int,
    *,
    within: CodecCosts = UNCODED,
    between: CodecCosts = UNCODED,
    overlap: float = 0.0,
) -> tuple[Transfer, ...]:
    """Return a collective of all ranks as transfers within nodes and between them, in their order.

    Only what one of ``local_ranks`` places on a node gathers or has summed travels between nodes,
    ``nbytes / local_ranks``; in an all-to-all everything travels twice.

    Args:
        name: of the whole; those of the transfers say more.
        collective: of all ranks.
        nbytes: as of a ``Transfer``.
        local_ranks: of every node, which are full.
        within: the codec within nodes.
        between: the codec between nodes.
        overlap: as of a ``Transfer``.

    Example:
        >>> for one in hierarchical("weights", Collective.ALL_GATHER, 8e6, 8):
        ...     print(one.name, one.nbytes)
        weights, all-gather between nodes 1000000.0
        weights, all-gather within nodes 8000000.0
    """
    gather, scatter = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    part = nbytes / local_ranks
    stages = {
        gather: [(gather, Scope.BETWEEN_NODES, part), (gather, Scope.WITHIN_NODES, nbytes)],
        scatter: [(scatter, Scope.WITHIN_NODES, nbytes), (scatter, Scope.BETWEEN_NODES, part)],
        Collective.ALL_REDUCE: [
            (scatter, Scope.WITHIN_NODES, nbytes),
            (Collective.ALL_REDUCE, Scope.BETWEEN_NODES, part),
            (gather, Scope.WITHIN_NODES, nbytes),
        ],
        Collective.ALL_TO_ALL: [
            (Collective.ALL_TO_ALL, scope, nbytes)
            for scope in (Scope.WITHIN_NODES, Scope.BETWEEN_NODES)
        ],
    }
    return tuple(
        Transfer(
            name=f"{name}, {one.value} {scope.value}", collective=one, nbytes=amount, scope=scope,
            costs=within if scope is Scope.WITHIN_NODES else between, overlap=overlap,
        )
        for one, scope, amount in stages[collective]
    )  # fmt: skip
