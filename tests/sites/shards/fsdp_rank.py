"""What a rank does in the tests of FSDP: a small model, trained with compressed exchanges."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tersor.sites import shards
from tersor.sites.shards.compression import ATTRIBUTE
from tests.sites.ranks import Failure

NUM_BLOCKS = 2
NUM_UNITS = NUM_BLOCKS + 1


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        # 37 does not divide into equal shards
        self.up, self.down = nn.Linear(width, 37), nn.Linear(37, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(NUM_BLOCKS))
        # one row: three of four ranks own nothing of it
        self.outer = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        for block in self.blocks:
            x = block(x)
        return self.outer(x)


def sharded(
    policy: MixedPrecisionPolicy | None = None,
    prepare: Callable[[Net], None] | None = None,
    seed: int = 0,
    **options: Any,
) -> Net:
    """Return the model that all ranks begin with; ``prepare`` changes it before it is sharded."""
    torch.manual_seed(seed)
    model = Net()
    if prepare is not None:
        prepare(model)
    options |= {} if policy is None else {"mp_policy": policy}
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def compressed(
    model: Net | None = None, ranks_per_node: int = 2, **options: Any
) -> tuple[Net, shards.ShardCompression]:
    model = sharded() if model is None else model
    return model, shards.compress(model, ranks_per_node=ranks_per_node, **options)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 6, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return (model(x).float() - y).square().mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)


def train(
    model: nn.Module,
    rank: int,
    num_steps: int,
    first: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    """Take steps of AdamW; return the losses of this rank."""
    optimizer = optimizer or optimizer_of(model)
    losses = []
    for step in range(first, first + num_steps):
        loss = loss_of(model, rank, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def gradient_error(model: nn.Module, exact: nn.Module, rank: int) -> float:
    """Return the relative error of the first step's gradient against that of another model."""
    found = []
    for one in (model, exact):
        loss_of(one, rank, 0).backward()
        found.append(torch.cat([p.grad.full_tensor().flatten() for p in one.parameters()]))
    return float((found[0] - found[1]).norm() / found[1].norm())


def whole(model: nn.Module) -> torch.Tensor:
    """Return all weights, exact, on every rank."""
    return torch.cat([p.full_tensor().detach().flatten().float() for p in model.parameters()])


def gathered_weights(model: Net) -> torch.Tensor:
    """Return all weights as gathers give them."""
    for module in (*model.blocks, model):
        module.unshard()
    found = torch.cat([p.detach().flatten().float() for p in model.parameters()])
    for module in (*model.blocks, model):
        module.reshard()
    return found


def error_of(model: Net) -> float:
    """Return the relative error of gathered weights."""
    exact = whole(model)
    return float((gathered_weights(model) - exact).norm() / exact.norm())


def received(compression: shards.ShardCompression) -> dict[str, int]:
    """Return the bytes of weights that this rank received so far, of levels that had some."""
    volumes = compression.stats.weights.volumes
    return {level: x.encoded_nbytes for level, x in volumes.items() if x.encoded_nbytes}


def message_of(call: Callable[[], Any]) -> str:
    """Return the class and the message of what a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - a test looks at whatever is raised
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def run_all(rank: int, functions: Sequence[Callable[[int], Any]]) -> dict[str, Any]:
    """Call functions one after the other; return what each returned, or its ``Failure``.

    One set of processes does for many tests. What raises does so on all ranks alike, or the rest is lost.
    """
    found: dict[str, Any] = {}
    for function in functions:
        try:
            found[function.__name__] = function(rank)
        except Exception as error:  # noqa: BLE001 - a test looks at whatever a rank raises
            found[function.__name__] = Failure(
                type(error).__name__, str(error), traceback.format_exc()
            )
    return found


def of_all(results: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """Return what every rank returned for a function, or fail with the first trace."""
    for rank, found in enumerate(results):
        one = found[name]
        assert not isinstance(one, Failure), f"rank {rank} failed in {name}:\n{one.trace}"
    return [found[name] for found in results]


def is_compressed(model: nn.Module) -> bool:
    return getattr(model, ATTRIBUTE, None) is not None


def assert_same_bits(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors[1:]:
        assert torch.equal(tensor, tensors[0])
