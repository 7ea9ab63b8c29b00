"""ResNet34: basic blocks of two 3 by 3 convolutions with batch norm, in four stages."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import nn
from torch.nn import functional

from tersor.errors import SpecError

Stem = Literal["cifar", "imagenet"]
STEMS: Final = ("cifar", "imagenet")
_BLOCKS: Final = (3, 4, 6, 3)
_SMALLEST_SIDE: Final = {"cifar": 8, "imagenet": 32}
"""Smallest height and width of images that leave at least one position in the last stage."""


class BasicBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        """Create the weights; if sizes differ, the shortcut is a 1 by 1 convolution."""
        super().__init__()
        self.first = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width_out)
        self.second = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block."""
        hidden = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """Predicts the class of each image.

    Args:
        num_classes: number of classes.
        stem: ``"cifar"`` is a 3 by 3 convolution at full resolution; ``"imagenet"`` is a 7 by 7
            convolution of stride 2 and pooling, which leaves a sixteenth of the positions.
        blocks: number of blocks per stage; every stage after the first halves the sides and doubles the
            width.
        width: channels of the first stage.
    """

    def __init__(
        self, num_classes: int = 10, stem: Stem = "cifar",
        blocks: tuple[int, ...] = _BLOCKS, width: int = 64,
    ) -> None:  # fmt: skip
        super().__init__()
        if stem not in STEMS:
            raise SpecError(f"stem must be one of {', '.join(STEMS)}, not {stem!r}")
        if num_classes < 1 or width < 1 or not blocks or min(blocks) < 1:
            raise SpecError("a ResNet needs classes, channels, and blocks in every stage")
        self.smallest_side = _SMALLEST_SIDE[stem]
        self.stem = _made_stem(stem, width)
        stages, width_in = [], width
        for number, count in enumerate(blocks):
            width_out = width << number
            strides = [2 if number else 1, *[1] * (count - 1)]
            for stride in strides:
                stages.append(BasicBlock(width_in, width_out, stride))
                width_in = width_out
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, num_classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes] of images [B, 3, side, side]."""
        logits: torch.Tensor = self.head(self.stages(self.stem(images)))
        return logits


def _made_stem(stem: Stem, width: int) -> nn.Sequential:
    if stem == "cifar":
        first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU())
    first = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
