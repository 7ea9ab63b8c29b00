"""How long exchanges and steps take on a cluster, from what each codec costs on one machine.

With R ranks on N nodes, g of them on each, or m on one that is not full (else m = g), and links of B
bits per second::

    exchange  = encode + sizes + payload + decode + rest
    n         = sample_nbytes * batch / R          bytes that a rank encodes, and decodes
    encode    = a + b * n                          decode and rest alike; each codec its own
    sizes     = s + L                              0 where every rank knows them
    payload   = p + L + max(inner, outer) + h * w * (R - 1) / R, and u where there were no sizes
    w         = n / ratio(batch / R)               bytes after encoding
    L         = (m - 1) * intra_latency + (R - m) * latency
    inner     = 8 * w * (g - 1) / R / (e * B_intra)
    outer     = 8 * w * (R - g) / R / (e * B_inter / g)

    step      = compute + forward + backward - hidden + allreduce
    hidden    = min(overlap * (payload forward + payload backward), compute)
    allreduce = 2 * (R - 1) / R * 8 * D / min(B of the ring)
                + 2 * ((R - N) * intra_latency + N * latency)

``a``, ``b`` and ``ratio`` are a codec's, measured; ``s``, ``p``, ``u`` (waiting for the slowest rank,
else a part of ``s``), ``h`` (a host's cost per byte sent), ``rest`` and ``e`` (the share of a link
that an all-to-all reaches; uneven tables are part of it) belong to the machine and its library of collectives. Nothing else is assumed: no congestion
beyond ``e``, no ranks that are slower than others, and as many tables per rank as bytes say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tersor.errors import SpecError
from tersor.planning.cluster import Cluster, Workload
from tersor.planning.curves import Line, RatioCurve

BASELINE: Final = "float32"
_LEAST_BITS, _MOST_BITS = 1e3, 1e16
"""Where break-even is looked for: beyond is never, or always."""


@dataclass(frozen=True, slots=True)
class OneWay:
    """What a codec costs in one direction.

    Attributes:
        encode: seconds by original bytes of a rank.
        decode: the same.
        ratio: original over encoded bytes.
        has_sizes: whether sizes are exchanged first.
    """

    encode: Line
    decode: Line
    ratio: RatioCurve
    has_sizes: bool = True


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to exchange.

    Attributes:
        name: of it.
        forward: looked-up rows.
        backward: gradients.
        keeps_bound: whether rows come back exactly or within the bound that was promised; None where
            none is promised.
    """

    name: str
    forward: OneWay
    backward: OneWay
    keeps_bound: bool | None = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """What a machine and its collectives cost beyond latency and bandwidth.

    Attributes:
        sizes_s: of an exchange of sizes.
        payload_s: of an exchange of payloads.
        unready_s: more of one that no exchange of sizes went before: ranks wait for the slowest there.
        host_s_per_byte: of each byte sent.
        rest: seconds that are in none of the phases, by original bytes of a rank, per direction.
        efficiency: share of a link's bandwidth that an all-to-all reaches.
    """

    sizes_s: float = 0.0
    payload_s: float = 0.0
    unready_s: float = 0.0
    host_s_per_byte: float = 0.0
    rest: Mapping[str, Line] = field(default_factory=dict)
    efficiency: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Predicted seconds of one direction; ``is_beyond`` where the ratio is a guess."""

    encode_s: float
    sizes_s: float
    payload_s: float
    decode_s: float
    rest_s: float
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
class Prediction:
    """One way to exchange at one number of ranks."""

    name: str
    num_ranks: int
    forward: Phases
    backward: Phases
    compute_s: float
    hidden_s: float
    allreduce_s: float

    @property
    def exchange_s(self) -> float:
        """Seconds of both directions."""
        return self.forward.total_s + self.backward.total_s

    @property
    def payload_s(self) -> float:
        """Seconds that payloads travel."""
        return self.forward.payload_s + self.backward.payload_s

    @property
    def coding_s(self) -> float:
        """Seconds of both directions but for payloads on their way."""
        return self.forward.coding_s + self.backward.coding_s

    @property
    def sizes_s(self) -> float:
        """Seconds of agreeing on sizes, a part of coding."""
        return self.forward.sizes_s + self.backward.sizes_s

    @property
    def step_s(self) -> float:
        """Seconds of a training step."""
        return self.compute_s + self.exchange_s - self.hidden_s + self.allreduce_s

    @property
    def is_beyond(self) -> bool:
        """Whether a ratio is a guess beyond the slices that were measured."""
        return self.forward.is_beyond or self.backward.is_beyond


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Everything a prediction needs.

    Attributes:
        profiles: the ways to exchange by name, the baseline among them.
        transport: of the machine that was measured.
        cluster: that is planned for.
        workload: as well.
        sample_nbytes: bytes of the rows that one sample looks up.
        compute: seconds of a rank's computing by its samples.
        allreduce_nbytes: of the dense gradients.
    """

    profiles: Mapping[str, Profile]
    transport: Transport
    cluster: Cluster
    workload: Workload
    sample_nbytes: float
    compute: Line = field(default_factory=Line)
    allreduce_nbytes: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a model without a baseline."""
        if BASELINE not in self.profiles:
            raise SpecError(f"rows of {BASELINE} are needed: everything is compared with it")

    def at_bandwidth(self, bits_per_s: float, num_ranks: int) -> Model:
        """Return the model with another bandwidth; see ``Cluster.with_bandwidth``."""
        return replace(self, cluster=self.cluster.with_bandwidth(bits_per_s, num_ranks))

    def predict(self, name: str, num_ranks: int) -> Prediction:
        """Return what one way to exchange takes; the formula stands at the top of this module.

        Raises:
            SpecError: fewer than 2 ranks, or more than the batch has samples.
        """
        if num_ranks < 2:
            raise SpecError(f"an exchange has 2 ranks at least, not {num_ranks}")
        profile = self.profiles[name]
        forward, backward = (
            self._phases(one_way, direction, num_ranks)
            for direction, one_way in (("forward", profile.forward), ("backward", profile.backward))
        )
        compute_s = self.compute.at(self.workload.rows_per_slice(num_ranks))
        payload_s = forward.payload_s + backward.payload_s
        return Prediction(
            name=name,
            num_ranks=num_ranks,
            forward=forward,
            backward=backward,
            compute_s=compute_s,
            hidden_s=min(self.workload.overlap * payload_s, compute_s),
            allreduce_s=self._allreduce_s(num_ranks),
        )

    def predictions(self, num_ranks: int) -> list[Prediction]:
        """Return all ways to exchange, the baseline first."""
        names = sorted(self.profiles, key=lambda name: name != BASELINE)
        return [self.predict(name, num_ranks) for name in names]

    def eligible(self, num_ranks: int) -> list[Prediction]:
        """Return those that broke no bound: what may be advised."""
        found = self.predictions(num_ranks)
        return [one for one in found if self.profiles[one.name].keeps_bound is not False]

    def break_even(self, name: str, num_ranks: int) -> float | None:
        """Return the bits per second at which a step takes as long as the baseline's.

        Above it the codec does not pay: 0 where it never does. None where it always does.
        """

        def loss_s(bits_per_s: float) -> float:
            model = self.at_bandwidth(bits_per_s, num_ranks)
            return model.predict(name, num_ranks).step_s - model.predict(BASELINE, num_ranks).step_s

        low, high = _LEAST_BITS, _MOST_BITS
        if loss_s(low) >= 0:
            return 0.0
        if loss_s(high) <= 0:
            return None
        # what a codec saves grows with the time that bytes take, so there is one place
        while high / low > 1 + 1e-12:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if loss_s(middle) < 0 else (low, middle)
        return low

    def _phases(self, one_way: OneWay, direction: str, num_ranks: int) -> Phases:
        rows = self.workload.rows_per_slice(num_ranks)
        nbytes, ratio = rows * self.sample_nbytes, one_way.ratio.at(rows)
        transport, latency_s = self.transport, self._latency_s(num_ranks)
        fixed_s = transport.payload_s + (0.0 if one_way.has_sizes else transport.unready_s)
        return Phases(
            encode_s=one_way.encode.at(nbytes),
            sizes_s=transport.sizes_s + latency_s if one_way.has_sizes else 0.0,
            payload_s=fixed_s + latency_s + self._sending_s(nbytes / ratio, num_ranks),
            decode_s=one_way.decode.at(nbytes),
            rest_s=transport.rest.get(direction, Line()).at(nbytes),
            ratio=ratio,
            is_beyond=one_way.ratio.is_beyond(rows),
        )

    def _latency_s(self, num_ranks: int) -> float:
        """Return the seconds that the messages of a rank with the most to other nodes add."""
        cluster, local = self.cluster, self.cluster.fewest_local_ranks(num_ranks)
        near, far = local - 1, num_ranks - local
        return near * cluster.intra_latency_s + far * cluster.inter_latency_s

    def _sending_s(self, nbytes: float, num_ranks: int) -> float:
        """Return the seconds that a rank's encoded bytes take to all others."""
        cluster, local = self.cluster, self.cluster.local_ranks(num_ranks)
        each_nbits = (
            8 * nbytes / num_ranks / (self.workload.efficiency or self.transport.efficiency)
        )
        inner_s = each_nbits * (local - 1) / cluster.intra_bits_per_s
        outer_s = each_nbits * (num_ranks - local) / (cluster.inter_bits_per_s / local)
        host_s = self.transport.host_s_per_byte * nbytes * (num_ranks - 1) / num_ranks
        return max(inner_s, outer_s) + host_s

    def _allreduce_s(self, num_ranks: int) -> float:
        """Return the seconds of a ring over all ranks that enters every node once."""
        if not self.allreduce_nbytes:
            return 0.0
        cluster, local = self.cluster, self.cluster.local_ranks(num_ranks)
        links = [cluster.intra_bits_per_s] if local > 1 else []
        links += [cluster.inter_bits_per_s] if num_ranks > local else []
        far = cluster.num_nodes(num_ranks) if num_ranks > local else 0
        round_s = (num_ranks - far) * cluster.intra_latency_s + far * cluster.inter_latency_s
        share = 2 * (num_ranks - 1) / num_ranks
        return share * 8 * self.allreduce_nbytes / min(links) + 2 * round_s
