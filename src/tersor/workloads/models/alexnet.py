"""AlexNet for images of 32 by 32 pixels, in the layout of the poster on adaptive activation compression.

Five 3 by 3 convolutions and three linear layers. The first convolution has stride 2, and three are followed
by pooling, so the linear layers receive 2 by 2 positions of 256 channels.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from tersor.errors import SpecError

SIDE: Final = 32
"""Height and width of an image in pixels."""
_WIDTHS: Final = (64, 192, 384, 256, 256)
_HIDDEN: Final = 4096


def _convolution(width_in: int, width_out: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(width_in, width_out, 3, stride, padding=1), nn.ReLU()]


class AlexNet(nn.Module):
    """Predicts the class of each image.

    Args:
        num_classes: number of classes.
        dropout: share of the inputs of the first two linear layers that are dropped in training.
        widths: channels of the five convolutions.
        hidden: width of the hidden linear layers.
    """

    def __init__(
        self, num_classes: int = 10, dropout: float = 0.0,
        widths: tuple[int, int, int, int, int] = _WIDTHS, hidden: int = _HIDDEN,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_classes < 1 or not 0 <= dropout < 1:
            raise SpecError(
                f"an AlexNet needs classes and a dropout from 0 to below 1, not {num_classes} and {dropout}"
            )
        first, second, third, fourth, fifth = widths
        self.features = nn.Sequential(
            *_convolution(3, first, stride=2), nn.MaxPool2d(2),
            *_convolution(first, second), nn.MaxPool2d(2),
            *_convolution(second, third), *_convolution(third, fourth),
            *_convolution(fourth, fifth), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout), nn.Linear(4 * fifth, hidden), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # with torch's default initialization the loss does not fall for the first 100 steps
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes] of images [B, 3, 32, 32]."""
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits
