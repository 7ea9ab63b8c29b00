"""Rows of 2 nodes of 2 ranks that took exactly what a calculation by hand says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from tersor.bench.core.rows import ShardRow
from tersor.bench.core.shard_times import ShardPart, ShardTimes
from tersor.bench.shards.contenders import described, make_way
from tersor.planning import parse_bandwidth
from tersor.workloads.models.gpt import PRESETS
from tests.bench.core.test_rows import make_row
from tests.bench.shards.made import seconds

SHAPE = replace(PRESETS["2M"].shape, vocabulary=256)
N, ROOT = SHAPE.num_parameters, (256 + 256 + 2) * 192
LINKS = ("100mbit", "300mbit", "1gbit")
PASS_S, SLOWDOWN, HEADERS = 3e-3, 1.25, 1.06
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
class ByHand:
    """Of a step: bytes that leave each node, bytes within all nodes, passes, and bytes that a rank codes."""

    weights: float | None
    gradients: float
    passes: int
    weights_near: float = 0.0
    gradients_near: float = 0.0
    coded: float = 0.0


BY_HAND = {
    # a ring takes 3 of 4 shards out of a node; gloo's reduce-scatter goes round twice
    "fsdp-fp32": ByHand(3 * TWICE, 6 * N, 9 + 2 * 5),
    "fsdp-bf16": ByHand(1.5 * TWICE, 3 * N, 9 + 2 * 5),
    # 4 ranks send half of 4 bytes within nodes, then 2 ranks half of 2; all of it is copied and added
    "fsdp-two-hop": ByHand(3 * TWICE, 2 * N, 9 + 5 + 5, gradients_near=8 * N, coded=12 * N),
    "fsdp-4-bit": ByHand(
        0.75 * N * FOUR_BIT_WEIGHTS, 0.5 * N * FOUR_BIT, 5 + 5 + 5,
        gradients_near=2 * N * EIGHT_BIT, coded=(1 + 4 + 12) * N,
    ),
    # each place on a node gathers half of the weights, then nodes all of them as they are, twice
    "fsdp-4-bit-node": ByHand(
        0.5 * N * FOUR_BIT_WEIGHTS, 0.5 * N * FOUR_BIT, 5 + 9 + 5 + 5, weights_near=8 * TWICE,
        gradients_near=2 * N * EIGHT_BIT, coded=(1 + 2 + 12) * N + 6 * TWICE,
    ),
    "ddp-fp32": ByHand(None, 6 * N, 2 * 2),
    "ddp-bf16": ByHand(None, 3 * N, 2 * 2),
    # 29 values per block and unit of width, and the sides of two tables; 3 all-reduces per bucket
    "ddp-powersgd": ByHand(None, 1.5 * 4 * (29 * 4 * 192 + 4 * 192 + 512), 2 * 2 * 3),
    # the mean comes back as the sum went, in 4 bits within nodes too
    "ddp-4-bit": ByHand(
        None, N * BUCKET_FOUR_BIT, 4 * 2,
        gradients_near=2 * N * (BUCKET_EIGHT_BIT + BUCKET_FOUR_BIT), coded=(12 + 1 + 2 + 2 + 4) * N,
    ),
}  # fmt: skip


def made_row(name: str, link: str, *, noise: float = 1.0, step_noise: float = 1.0) -> ShardRow:
    """Return a row; ``noise`` is a factor of its exchange, ``step_noise`` of its step."""
    hand, way = BY_HAND[name], make_way(name)
    bits = parse_bandwidth(link)

    def payload_s(nbytes: float | None, passes: float) -> float:
        return passes * PASS_S + (nbytes or 0.0) * HEADERS * 8 / bits * SLOWDOWN

    coding_s = CODING_S * hand.coded
    sending_s = payload_s((hand.weights or 0.0) + hand.gradients, hand.passes)
    hidden_s = POWERSGD_S if way.hook == "powersgd" else 0.0
    exchange_s = (sending_s + coding_s + hidden_s) * noise
    compute_s = COMPUTE_S["bf16" if way.dtype == "bf16" else way.wrapper]
    step_s = compute_s + coding_s + hidden_s + (1 - HIDDEN[way.wrapper]) * sending_s

    def part(nbytes: float | None, near: float) -> ShardPart | None:
        if nbytes is None:
            return None
        link_nbytes = round(2 * HEADERS * nbytes)
        return ShardPart(
            seconds=seconds(exchange_s / 2), link_nbytes=link_nbytes, node_nbytes=round(near)
        )

    gradients = part(hand.gradients, hand.gradients_near)
    assert gradients is not None
    times = ShardTimes(
        wrapper=way.wrapper, network="namespaces", link=link, num_ranks=4, ranks_per_node=2, batch=4,
        tokens=1024, step_s=seconds(step_s * step_noise), exchange_s=seconds(exchange_s),
        weights=part(hand.weights, hand.weights_near), gradients=gradients,
    )  # fmt: skip
    version, spec = described(way)
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
