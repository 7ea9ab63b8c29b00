"""Rows of trainings that nobody measured."""

from __future__ import annotations

from typing import Any

from tersor.bench.core.rows import ShardRow
from tersor.bench.core.shard_times import ShardPart, ShardTimes
from tersor.bench.core.timing import Percentiles
from tests.bench.core.test_rows import make_row

NUM_WEIGHTS = 1000


def seconds(x: float) -> Percentiles:
    return Percentiles(x, x, x)


def made_row(
    name: str, exchange_s: float, step_s: float, link: str | None = "1gbit", **changes: Any
) -> ShardRow:
    """Return a row of 2 nodes of 2 ranks, whose links carried 500 bytes of weights and 750 of gradients."""
    wrapper = name.partition("-")[0]
    nbytes = None if link is None else 500
    part = ShardPart(seconds=seconds(exchange_s / 2), link_nbytes=nbytes, node_nbytes=900)
    times = ShardTimes(
        wrapper=wrapper, network="namespaces" if link else "loopback", link=link, num_ranks=4,
        ranks_per_node=2, batch=4, tokens=1024, step_s=seconds(step_s), exchange_s=seconds(exchange_s),
        weights=part if wrapper == "fsdp" else None,
        gradients=ShardPart(
            seconds=seconds(exchange_s / 2), link_nbytes=nbytes and 750, node_nbytes=900
        ),
    )  # fmt: skip
    plain = make_row(suite="shards", codec=name, input="gpt-10M", num_values=NUM_WEIGHTS)
    values = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return ShardRow(**{**values, "shards": times, **changes})


def made_rows() -> list[ShardRow]:
    return [
        made_row("fsdp-fp32", 0.75, 2.0),
        made_row("fsdp-bf16", 0.5, 1.5),
        made_row("fsdp-two-hop", 0.3, 1.6),
        made_row("fsdp-4-bit", 0.125, 1.0),
        made_row("ddp-fp32", 0.5, 1.2),
        made_row("ddp-4-bit", 0.25, 0.8),
    ]
