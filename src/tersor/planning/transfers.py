"""One collective of a training step with its codec, and the time of each of its phases.

For a collective of n original bytes in k passes, with the traffic of ``collectives``::

    transfer = encode + sizes + payload + decode + rest
    encode   = a + b * (original bytes that a rank encodes), per call; decode and rest likewise
    w        = n / ratio                                     bytes after encoding
    sizes    = k * s + L                                     0 if every rank knows the sizes
    payload  = k * p + L + k * max(8 * near / B_intra, 8 * far / B_inter) / e + k * h * sent,
               plus u if no sizes were exchanged
    L        = the latency of all messages

``a``, ``b`` and ``ratio`` are measured per codec. The others belong to a machine and its collectives
library: ``s`` and ``p`` are fixed costs per pass, ``u`` is the wait for the slowest rank (part of ``s`` if
sizes are exchanged), ``h`` is the host's cost per byte sent, ``e`` is the share of a link's bandwidth that
is reached, and ``rest`` is time outside the other phases.
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
    """The measured costs of a codec.

    Attributes:
        encode: seconds of an encode call by its original bytes.
        decode: seconds of a decode call by its original bytes.
        ratio: original bytes divided by encoded bytes.
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
        """Fit the costs to measurements.

        Args:
            encode: original bytes and seconds of each encode call.
            decode: original bytes and seconds of each decode call.
            ratios: the ratio at each number of rows per slice, or one constant ratio.
            has_sizes: see ``CodecCosts``.
        """
        curve = RatioCurve.of(ratios) if isinstance(ratios, Mapping) else RatioCurve.fixed(ratios)
        return cls(Line.fit(encode), Line.fit(decode), curve, has_sizes)


UNCODED: Final = CodecCosts(Line(), Line(), RatioCurve.fixed(1.0), has_sizes=False)
"""The costs of sending values uncompressed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """Costs of a machine and its collectives library beyond latency and bandwidth.

    Attributes:
        sizes_s: fixed seconds of one exchange of sizes.
        payload_s: fixed seconds of one payload pass.
        unready_s: extra seconds of a transfer without an exchange of sizes, because its payload is
            then the first to wait for the slowest rank.
        host_s_per_byte: host seconds per byte sent.
        rest: seconds outside all phases, by original bytes of a rank; keyed by transfer name.
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
    """Predicted seconds of one transfer; ``is_extrapolated`` if the ratio is extrapolated."""

    encode_s: float = 0.0
    sizes_s: float = 0.0
    payload_s: float = 0.0
    decode_s: float = 0.0
    rest_s: float = 0.0
    ratio: float
    is_extrapolated: bool

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        return self.payload_s + self.coding_s

    @property
    def coding_s(self) -> float:
        """Seconds of all phases except the payload."""
        return self.encode_s + self.sizes_s + self.decode_s + self.rest_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective of a step.

    Attributes:
        name: a name that is unique within the step.
        collective: the collective operation.
        nbytes: original bytes per rank: the whole input of an all-to-all (including the rank's own
            part), a reduce-scatter or an all-reduce, and the whole result of an all-gather.
        costs: costs of the codec.
        slice_rows: rows per slice, at which the codec's ratio is looked up.
        pattern: who sends to whom. None means pairwise for an all-to-all and for sums of encoded
            values, and a ring otherwise.
        scope: which ranks take part.
        overlap: share of the payload's time that ranks spend computing.
        transport: costs of the machine.
        count: number of such collectives per step, run one after the other, each with ``nbytes``.
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
        """Reject combinations that no collective supports."""
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
        """The pattern, with None resolved to the default."""
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
        # between nodes there is one group per local rank
        between = self.scope is Scope.BETWEEN_NODES
        num_groups = cluster.local_ranks(num_ranks) if between else 1
        times = self.count * self.collective.num_passes * num_groups
        return times * self.sent(cluster, num_ranks).far_nbytes

    def phases(self, cluster: Cluster, num_ranks: int) -> Phases:
        """Return the phases of all ``count`` collectives; the module docstring has the formula."""
        costs, transport = self.costs, self.transport
        group, members = self.scope.group(cluster, num_ranks)
        ratio, is_extrapolated = (
            costs.ratio.at(self.slice_rows),
            costs.ratio.is_extrapolated(self.slice_rows),
        )
        if members == 1:
            # a single rank sends nothing
            return Phases(ratio=ratio, is_extrapolated=is_extrapolated)
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
            is_extrapolated=is_extrapolated,
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
    """Split a collective of all ranks into transfers within and between nodes, in execution order.

    Between nodes, each local rank sends only its part, ``nbytes / local_ranks``. The exception is an
    all-to-all, in which everything is sent twice.

    Args:
        name: the collective's name, which begins the name of each transfer.
        collective: the collective of all ranks.
        nbytes: as in ``Transfer``.
        local_ranks: ranks per node; all nodes are full.
        within: codec costs within nodes.
        between: codec costs between nodes.
        overlap: as in ``Transfer``.

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
