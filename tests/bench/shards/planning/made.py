"""Rows of 2 nodes of 2 ranks that took exactly what a calculation by hand says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from tersor.bench.core.rows import ShardRow
from tersor.bench.core.shard_times import ShardPart, ShardTimes
from tersor.bench.shards.contenders import described, make_variant
from tersor.planning import parse_bandwidth
from tersor.workloads.models.gpt import PRESETS
from tests.bench.core.test_rows import make_row
from tests.bench.shards.made import seconds

SHAPE = replace(PRESETS["2M"].shape, vocabulary=256)
N, ROOT = SHAPE.num_parameters, (256 + 256 + 2) * 192
LINKS = ("100mbit", "300mbit", "1gbit")
PASS_S, NEAR_S, HEADERS = 3e-3, 1e-9, 1.06
SLOWDOWN = {"ring": 1.25, "pairwise": 2.0}
CODING_S, POWERSGD_S = 4e-10, 5e-3
COMPUTE_S = {"fsdp": 0.2, "bf16": 0.3, "ddp": 0.15}
HIDDEN = {"fsdp": 0.0, "ddp": 0.1}
# a rank's row of one of five modules: values in whole groups of 2048 or 128, four bytes for each
ROW = ceil(ceil(N / 5) / 4)
FOUR_BIT_WEIGHTS = ceil(ROW / 2048) * (1024 + 4) / ROW
FOUR_BIT, EIGHT_BIT = (ceil(ROW / 128) * (nbytes + 4) / ROW for nbytes in (64, 128))
# the same of one of two buckets
BUCKET_ROW = ceil(ceil(N / 2) / 4)
BUCKET_FOUR_BIT, BUCKET_EIGHT_BIT = (
    ceil(BUCKET_ROW / 128) * (nbytes + 4) / BUCKET_ROW for nbytes in (64, 128)
)
TWICE = 2 * N - ROOT
"""Weights that are gathered in forward and in backward: the root's once."""


@dataclass(frozen=True)
class Sent:
    """Weights or gradients of a step.

    ``ring`` and ``pairwise`` are bytes that leave each node, ``near`` those within both nodes, ``coded``
    those that a rank encodes and decodes.
    """

    passes: int
    ring: float = 0.0
    pairwise: float = 0.0
    near: float = 0.0
    coded: float = 0.0

    def seconds(self, bits_per_s: float) -> float:
        """Return what they take without coding; 4 ranks send an equal part of what stays in nodes."""
        slow = {"ring": self.ring, "pairwise": self.pairwise}
        link_s = sum(SLOWDOWN[kind] * HEADERS * 8 * nbytes for kind, nbytes in slow.items())
        return self.passes * PASS_S + link_s / bits_per_s + NEAR_S * self.near / 4


# a ring takes 3 of 4 shards out of a node; gloo's reduce-scatter goes round twice
PLAIN = Sent(9, ring=3 * TWICE)
# 4 ranks send half of each value within nodes, then 2 ranks half of 2; all of it is coded twice
TWO_HOPS = Sent(5 + 5, pairwise=0.5 * N * FOUR_BIT, near=2 * N * EIGHT_BIT, coded=12 * N)
BY_HAND = {
    "fsdp-fp32": (PLAIN, Sent(2 * 5, ring=6 * N)),
    "fsdp-bf16": (Sent(9, ring=1.5 * TWICE), Sent(2 * 5, ring=3 * N)),
    "fsdp-two-hop": (PLAIN, Sent(5 + 5, pairwise=2 * N, near=8 * N, coded=12 * N)),
    # codes cross to the other node once, and are shared there
    "fsdp-4-bit": (
        Sent(
            5 + 5, ring=0.5 * N * FOUR_BIT_WEIGHTS, near=2 * N * FOUR_BIT_WEIGHTS,
            coded=(1 + 2 + 2 + 4) * N,
        ),
        TWO_HOPS,
    ),
    # each place on a node gathers half of the weights, then nodes all of them as they are, twice
    "fsdp-4-bit-node": (
        Sent(5 + 9, ring=0.5 * N * FOUR_BIT_WEIGHTS, near=8 * TWICE, coded=3 * N + 6 * TWICE),
        TWO_HOPS,
    ),
    "ddp-fp32": (None, Sent(2 * 2, ring=6 * N)),
    "ddp-bf16": (None, Sent(2 * 2, ring=3 * N)),
    # 29 values per block and unit of width, and the sides of two tables; 3 all-reduces per bucket
    "ddp-powersgd": (None, Sent(2 * 2 * 3, ring=1.5 * 4 * (29 * 4 * 192 + 4 * 192 + 512))),
    # the mean comes back as the sum went, in 4 bits within nodes too
    "ddp-4-bit": (
        None,
        Sent(
            4 * 2, ring=0.5 * N * BUCKET_FOUR_BIT, pairwise=0.5 * N * BUCKET_FOUR_BIT,
            near=2 * N * (BUCKET_EIGHT_BIT + BUCKET_FOUR_BIT), coded=(12 + 1 + 2 + 2 + 4) * N,
        ),
    ),
}  # fmt: skip
"""Weights and gradients."""


def leaving_by_hand(name: str) -> float:
    """Return the bytes that leave each node in a step, without headers."""
    return sum(one.ring + one.pairwise for one in BY_HAND[name] if one is not None)


def coded_by_hand(name: str) -> float:
    """Return the bytes that a rank encodes and decodes in a step."""
    return sum(one.coded for one in BY_HAND[name] if one is not None)


def made_row(name: str, link: str, *, noise: float = 1.0, step_noise: float = 1.0) -> ShardRow:
    """Return a row; ``noise`` is a factor of its exchange, ``step_noise`` of its step."""
    weights, gradients = BY_HAND[name]
    variant, bits = make_variant(name), parse_bandwidth(link)
    hidden_s = POWERSGD_S if variant.hook == "powersgd" else 0.0

    def part(sent: Sent, extra_s: float) -> ShardPart:
        whole_s = sent.seconds(bits) + CODING_S * sent.coded + extra_s
        return ShardPart(
            seconds=seconds(whole_s * noise), node_nbytes=round(sent.near),
            link_nbytes=round(2 * HEADERS * (sent.ring + sent.pairwise)),
        )  # fmt: skip

    parts = (None if weights is None else part(weights, 0.0), part(gradients, hidden_s))
    exchange_s = sum(one.seconds.p50 for one in parts if one is not None)
    coding_s = CODING_S * coded_by_hand(name)
    sending_s = exchange_s / noise - coding_s - hidden_s
    compute_s = COMPUTE_S["bf16" if variant.dtype == "bf16" else variant.wrapper]
    step_s = compute_s + coding_s + hidden_s + (1 - HIDDEN[variant.wrapper]) * sending_s
    times = ShardTimes(
        wrapper=variant.wrapper, network="namespaces", link=link, num_ranks=4, ranks_per_node=2, batch=4,
        tokens=1024, step_s=seconds(step_s * step_noise), exchange_s=seconds(exchange_s),
        weights=parts[0], gradients=parts[1],
    )  # fmt: skip
    version, spec = described(variant)
    plain = make_row(
        suite="shards", codec=name, version=version, spec=spec, input="gpt-2M", num_values=N,
        encode_s=seconds(coding_s), decode_s=seconds(0.0), worst_error=None, error_bound=None,
        group=f"batch 4, {link}",
    )  # fmt: skip
    values = {field: getattr(plain, field) for field in plain.__struct_fields__}
    return ShardRow(**values, shards=times)


def made_rows(links: tuple[str, ...] = LINKS, **changes: float) -> list[ShardRow]:
    return [made_row(name, link, **changes) for link in links for name in BY_HAND]


ROWS = made_rows()
