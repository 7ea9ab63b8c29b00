"""What a rank does in the tests of FSDP: a small model, trained with compressed exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tersor.sites import shards


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        # 37 does not divide into equal shards
        self.up, self.down = nn.Linear(width, 37), nn.Linear(37, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 24, num_blocks: int = 2) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.outer = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        for block in self.blocks:
            x = block(x)
        return self.outer(x)


def sharded(policy: MixedPrecisionPolicy | None = None, **options: Any) -> Net:
    """Return the model that all ranks begin with."""
    torch.manual_seed(0)
    model = Net()
    options |= {} if policy is None else {"mp_policy": policy}
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 6, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return (model(x) - y).square().mean()


def train(
    model: nn.Module,
    rank: int,
    num_steps: int,
    first: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    between: Callable[[int], None] | None = None,
) -> list[float]:
    """Take steps of AdamW; return the losses of this rank."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(first, first + num_steps):
        loss = loss_of(model, rank, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if between is not None:
            between(step)
    return losses


def whole(model: nn.Module) -> torch.Tensor:
    """Return all weights, exact, on every rank."""
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def gathered_weights(model: nn.Module) -> torch.Tensor:
    """Return all weights as gathers give them."""
    for module in (*model.blocks, model):
        module.unshard()
    found = torch.cat([p.detach().flatten().float() for p in model.parameters()])
    for module in (*model.blocks, model):
        module.reshard()
    return found


def compressed(policy: Any = None, options: dict[str, Any] | None = None, **sharding: Any):
    model = sharded(policy, **sharding)
    return model, shards.compress(model, ranks_per_node=2, **(options or {}))
