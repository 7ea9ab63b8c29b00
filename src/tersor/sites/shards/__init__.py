"""Compressed communication for sharded data parallelism: weights and gradients in about 4 bits per value.

Use ``compress(model)`` after ``fully_shard(model)``, ``ddp_hook`` with DistributedDataParallel, and
``quantized_all_gather`` and ``quantized_reduce_scatter`` in custom training loops.
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
