"""Compilation of the kernels of an exchange up front, so that no rank waits while another one compiles."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import nn

from tersor.sites.shards.in_process import LocalShards
from tersor.sites.shards.options import Gradients, Weights

_MOST_VALUES: Final = 1 << 18
"""Maximum number of values in a rank's shard of the warm-up model."""


@cache
def warm_up(
    weights: Weights | None,
    gradients: Gradients | None,
    param_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Run one step of a small model with simulated ranks, once per process for each combination of arguments.

    This compiles or loads all kernels that an exchange calls, on one level and on two. That takes seconds, which the
    statistics would otherwise count as coding time.
    """
    group = max(one.group for one in (weights, gradients) if one) if weights or gradients else 1
    for num_nodes, ranks_per_node in ((2, 2), (1, 2)):
        model = nn.Module()
        # a shard has several whole groups, as in a real model; zeros, because random values would advance the
        # training's generator
        shape = num_nodes * ranks_per_node, min(4 * group, _MOST_VALUES)
        model.weight = nn.Parameter(torch.zeros(shape, device=device, dtype=reduce_dtype))
        local = LocalShards(
            model, [model], num_nodes, ranks_per_node, weights, gradients, param_dtype
        )
        for rank in range(local.world_size):
            model.weight.grad = torch.zeros_like(model.weight)
            local.collect(rank)
        local.reduce()
        local.gather()
