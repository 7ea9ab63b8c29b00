"""A decoder-only GPT as GPT-2 has it: learned positions, norms before each part, tied embedding.

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
        layers: blocks of attention and a network.
        width: values per token; the network of a block is four times as wide.
        heads: of the attention; they share the width evenly.
        context: tokens of a sequence, at most.
        vocabulary: different tokens.
    """

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int

    def __post_init__(self) -> None:
        """Refuse a model that cannot be made."""
        if min(self.layers, self.width, self.heads, self.context, self.vocabulary) < 1:
            raise SpecError(f"every size of a GPT must be at least 1, not {self}")
        if self.width % self.heads:
            raise SpecError(
                f"a width of {self.width} is not divisible by {self.heads} heads; choose another number"
            )

    @property
    def num_parameters(self) -> int:
        """How many weights the model has.

        Example:
            >>> GptShape(12, 768, 12, 1024, 50257).num_parameters
            124439808
        """
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocabulary + self.context + 2) * self.width + self.layers * block


@dataclass(frozen=True, slots=True)
class GptPreset:
    """A set-up; the vocabulary of its shape is replaced by that of the tokens at hand."""

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
"""Three for small machines and those of the published runs, by their numbers of weights."""


class Block(nn.Module):
    """Attention and a network, each added to what it was given."""

    def __init__(self, width: int, heads: int, device: torch.device | str) -> None:
        """Make the weights; their values are set by ``set_weights``."""
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, device=device)
        self.attention_in = nn.Linear(width, 3 * width, device=device)
        self.attention_out = nn.Linear(width, width, device=device)
        self.network_norm = nn.LayerNorm(width, device=device)
        self.network_in = nn.Linear(width, 4 * width, device=device)
        self.network_out = nn.Linear(4 * width, width, device=device)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Return what the next block is given, [B, T, D]."""
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
    """Predicts each next token of sequences.

    Made on the device "meta" it takes no memory; ``to_empty`` and ``set_weights`` then fill it, whole
    or sharded.
    """

    def __init__(self, shape: GptShape, device: torch.device | str = "cpu") -> None:
        """Make the weights; their values are set by ``set_weights``."""
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width, device=device)
        self.positions = nn.Embedding(shape.context, shape.width, device=device)
        blocks = (Block(shape.width, shape.heads, device) for _ in range(shape.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.width, device=device)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Return the logits of the token after each, [B, T, V]; T is at most the context."""
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions(places)  # noqa: N806
        for block in self.blocks:
            x_BTD = block(x_BTD)  # noqa: N806
        return functional.linear(self.norm(x_BTD), self.tokens.weight)


def set_weights(model: Gpt, seed: int) -> None:
    """Give all weights their first values.

    They depend on ``seed`` and the name of a weight alone, so that any number of ranks on any kind of
    device trains the same model. Of a sharded one, each rank keeps its own part; no more than
    one weight is made at a time.
    """
    for name, parameter in model.named_parameters():
        value = _first_value(name, parameter.shape, model.shape.layers, seed)
        with torch.no_grad():
            if isinstance(parameter, DTensor):
                # without src_data_rank the ranks would wait for the value of the first one
                sharded = distribute_tensor(
                    value, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
                parameter.to_local().copy_(sharded.to_local())
            else:
                parameter.copy_(value)


def _first_value(name: str, size: torch.Size, layers: int, seed: int) -> torch.Tensor:
    """Return a weight as GPT-2 sets it: those added to the residual are smaller in deeper models."""
    if name.endswith("bias"):
        return torch.zeros(size)
    if len(size) == 1:
        return torch.ones(size)
    is_added = name.endswith(("attention_out.weight", "network_out.weight"))
    std = _STD / math.sqrt(2 * layers) if is_added else _STD
    digest = xxhash.xxh3_64_intdigest(f"{seed} {name}".encode())
    generator = torch.Generator().manual_seed(digest)
    return torch.empty(size).normal_(0.0, std, generator=generator)
