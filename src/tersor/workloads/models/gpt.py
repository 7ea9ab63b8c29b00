"""A decoder-only GPT like GPT-2: learned positions, pre-norm blocks, tied embedding.

Shapes: B sequences, T tokens, D values per token, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import xxhash
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from tersor.errors import SpecError

_STD: Final = 0.02


@dataclass(frozen=True, slots=True)
class GptShape:
    """The sizes of a model.

    Attributes:
        layers: number of blocks.
        width: values per token; the MLP of a block is four times as wide.
        heads: attention heads, which divide the width evenly.
        context: most tokens of a sequence.
        vocabulary: number of possible tokens.
    """

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int

    def __post_init__(self) -> None:
        """Validate the sizes."""
        if min(self.layers, self.width, self.heads, self.context, self.vocabulary) < 1:
            raise SpecError(f"every size of a GPT must be at least 1, not {self}")
        if self.width % self.heads:
            raise SpecError(
                f"a width of {self.width} is not divisible by {self.heads} heads; choose another number"
            )

    @property
    def num_parameters(self) -> int:
        """Number of weights of the model.

        Example:
            >>> GptShape(12, 768, 12, 1024, 50257).num_parameters
            124439808
        """
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocabulary + self.context + 2) * self.width + self.layers * block


@dataclass(frozen=True, slots=True)
class GptPreset:
    """A configuration; the vocabulary of its shape is replaced by that of the data."""

    shape: GptShape
    batch: int
    learning_rate: float


def _published(layers: int, width: int, heads: int, learning_rate: float) -> GptPreset:
    return GptPreset(GptShape(layers, width, heads, 2048, 50257), 256, learning_rate)


PRESETS: Final[Mapping[str, GptPreset]] = {
    "2M": GptPreset(GptShape(4, 192, 6, 256, 256), 32, 1e-3),
    "10M": GptPreset(GptShape(6, 384, 6, 256, 256), 64, 1e-3),
    "30M": GptPreset(GptShape(8, 512, 8, 512, 8192), 64, 6e-4),
    "125M": _published(12, 768, 12, 6e-4),
    "350M": _published(24, 1024, 16, 3e-4),
    "1.3B": _published(24, 2048, 16, 2e-4),
    "2.7B": _published(32, 2560, 32, 1.6e-4),
    "6.7B": _published(32, 4096, 32, 1.2e-4),
}
"""Three presets for small machines and those of the published runs, named by their number of weights."""


class Block(nn.Module):
    """A transformer block: attention and an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, device: torch.device | str) -> None:
        """Allocate the weights; ``set_weights`` sets their values."""
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, device=device)
        self.attention_in = nn.Linear(width, 3 * width, device=device)
        self.attention_out = nn.Linear(width, width, device=device)
        self.network_norm = nn.LayerNorm(width, device=device)
        self.network_in = nn.Linear(width, 4 * width, device=device)
        self.network_out = nn.Linear(4 * width, width, device=device)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Return the output of the block, [B, T, D]."""
        x_BTD = x_BTD + self._attention(self.attention_norm(x_BTD))  # noqa: N806
        hidden = functional.gelu(self.network_in(self.network_norm(x_BTD)), approximate="tanh")
        out: torch.Tensor = self.network_out(hidden)
        return x_BTD + out

    def _attention(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        parts = self.attention_in(x_BTD).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.attention_out(mixed.transpose(1, 2).flatten(2))
        return out


class Gpt(nn.Module):
    """Predicts the next token at each position of sequences.

    A model on the device "meta" takes no memory; ``to_empty`` and ``set_weights`` then fill it, whole or
    sharded.
    """

    def __init__(self, shape: GptShape, device: torch.device | str = "cpu") -> None:
        """Allocate the weights; ``set_weights`` sets their values."""
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width, device=device)
        self.positions = nn.Embedding(shape.context, shape.width, device=device)
        blocks = (Block(shape.width, shape.heads, device) for _ in range(shape.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.width, device=device)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Return the logits of the next token at each position, [B, T, V]; T is at most the context."""
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions(places)  # noqa: N806
        for block in self.blocks:
            x_BTD = block(x_BTD)  # noqa: N806
        return functional.linear(self.norm(x_BTD), self.tokens.weight)


def set_weights(model: Gpt, seed: int) -> None:
    """Initialize all weights.

    Values depend only on ``seed`` and the name of a weight, so any number of ranks on any kind of device
    trains the same model. In a sharded model each rank stores its own part; only one full weight exists
    at a time.
    """
    for name, parameter in model.named_parameters():
        value = _first_value(name, parameter.shape, model.shape.layers, seed)
        with torch.no_grad():
            if isinstance(parameter, DTensor):
                # by default the ranks would wait for the value of rank 0
                sharded = distribute_tensor(
                    value, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
                parameter.to_local().copy_(sharded.to_local())
            else:
                parameter.copy_(value)


def _first_value(name: str, size: torch.Size, layers: int, seed: int) -> torch.Tensor:
    """Initialize a weight as in GPT-2: projections into the residual are smaller in deeper models."""
    if name.endswith("bias"):
        return torch.zeros(size)
    if len(size) == 1:
        return torch.ones(size)
    is_added = name.endswith(("attention_out.weight", "network_out.weight"))
    std = _STD / math.sqrt(2 * layers) if is_added else _STD
    digest = xxhash.xxh3_64_intdigest(f"{seed} {name}".encode())
    generator = torch.Generator().manual_seed(digest)
    return torch.empty(size).normal_(0.0, std, generator=generator)
