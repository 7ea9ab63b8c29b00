"""Small networks with all that makes saving hard, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional


def cnn() -> nn.Module:
    """Batch norm, ReLU in place, max-pooling, dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(512, 10),
    )


class Block(nn.Module):
    """A block of a GPT, fused attention."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = batch, length, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Embedding, two blocks, a head."""

    def __init__(self, num_tokens: int = 64, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x))))


class MultiHead(nn.Module):
    """``nn.MultiheadAttention``, which calls fused attention deep inside."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class ResidualBlock(nn.Module):
    """Two convolutions with norms and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm_a(self.a(x)))
        return functional.relu(self.norm_b(self.b(y)) + x)


def resnet(width: int = 16, num_blocks: int = 3) -> nn.Module:
    """A stem and blocks of one width."""
    stem = [nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = [ResidualBlock(width) for _ in range(num_blocks)]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )


def images(batch: int = 16) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(3))


def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (8, 32), generator=torch.Generator().manual_seed(3))


def gradients(
    forward: Callable[[torch.Tensor], torch.Tensor],
    model: nn.Module,
    x: torch.Tensor,
    context: AbstractContextManager[object] | None = None,
) -> list[torch.Tensor]:
    """Return the gradients of a loss outside of a context, after the same random numbers each time."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    with context or nullcontext():
        out = forward(x)
    out.square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def all_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))
