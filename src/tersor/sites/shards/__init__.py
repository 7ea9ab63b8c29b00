"""Weights and gradients of sharded data parallelism in about 4 bits each.

``compress(model)`` after ``fully_shard(model)``; ``ddp_hook`` for DistributedDataParallel;
``quantized_all_gather`` and ``quantized_reduce_scatter`` for loops of one's own.
"""

from tersor.sites.shards.collectives import quantized_all_gather, quantized_reduce_scatter
from tersor.sites.shards.compression import ShardCompression
from tersor.sites.shards.ddp import DdpState, ddp_hook
from tersor.sites.shards.fsdp import compress, restore
from tersor.sites.shards.in_process import LocalShards
from tersor.sites.shards.options import Gradients, Weights
from tersor.sites.shards.stats import ShardStats

__all__ = [
    "DdpState",
    "Gradients",
    "LocalShards",
    "ShardCompression",
    "ShardStats",
    "Weights",
    "compress",
    "ddp_hook",
    "quantized_all_gather",
    "quantized_reduce_scatter",
    "restore",
]
