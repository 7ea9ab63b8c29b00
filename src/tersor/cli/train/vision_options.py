"""Options specific to ``tersor train alexnet`` and ``tersor train resnet34``."""

from __future__ import annotations

from typing import Annotated

from tersor.cli.options import option

Data = Annotated[
    str,
    option(
        "--data",
        "synthetic, a folder of CIFAR-10's binary batches, .npz, or cifar10 of TERSOR_DATA.",
        "IMAGES",
    ),
]
Preset = Annotated[
    str,
    option("--preset", "Recipe: one-cycle or authors of alexnet, cifar or imagenet of resnet34."),
]
Steps = Annotated[
    int | None,
    option("--steps", "Steps to train for, including those before a --resume; default: 1000.", "N"),
]
Epochs = Annotated[
    float | None, option("--epochs", "Epochs to train for, instead of --steps.", "X")
]
Side = Annotated[
    int | None, option("--side", "Pixels that images are scaled to; default: the preset's.", "N")
]
