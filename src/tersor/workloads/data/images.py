"""Labelled images: what every source of them gives, and which of them a step takes, and how changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tersor.errors import SpecError
from tersor.workloads.data.hashes import hashes

Split = Literal["train", "test"]
Pixels: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int64]
_ORDER, _CHANGES = 0, 1
_LARGEST_SHIFT: Final = 3


class ImageSource(Protocol):
    """Labelled images that can be read at any place, so that runs resume and ranks share."""

    @property
    def name(self) -> str:
        """For logs and reports; other images have another name."""

    @property
    def num_classes(self) -> int:
        """How many different labels there may be; they count from 0."""

    def images(self, split: Split) -> Pixels:
        """Return all images of a split, uint8 [images, 3, height, width]."""

    def labels(self, split: Split) -> Places:
        """Return their labels, int64 [images]."""


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Images of a step as they are stored, and how each is changed before the model sees it.

    Attributes:
        images: uint8 [B, 3, height, width].
        labels: int64 [B].
        flips: bool [B], True where left and right change places.
        shifts: int64 [B, 2], pixels down and to the right.
    """

    images: torch.Tensor
    labels: torch.Tensor
    flips: torch.Tensor
    shifts: torch.Tensor

    def to(self, device: torch.device) -> ImageBatch:
        """Return the batch on a device."""
        parts = (self.images, self.labels, self.flips, self.shifts)
        return ImageBatch(*(part.to(device) for part in parts))


def training_batch(
    source: ImageSource, seed: int, first: int, count: int, epoch_size: int, *, augment: bool
) -> ImageBatch:
    """Return training images by their numbers from ``first`` on, which count through all epochs.

    Image and change depend on seed and number alone. An epoch has every image at most once, in an
    order of its own.

    Args:
        source: of the images.
        seed: of the order and the changes.
        first: number of the first image; ``first`` to ``first + count`` lie in one epoch.
        count: how many.
        epoch_size: images of an epoch.
        augment: flip half of the images and shift all by up to 3 pixels; else none.
    """
    epoch, begin = divmod(first, epoch_size)
    order = _order(len(source.labels("train")), seed, epoch)
    places = order[begin : begin + count]
    bits = hashes(seed, _CHANGES, first, count)
    flips = (bits & np.uint64(1)).astype(bool)
    span = np.uint64(2 * _LARGEST_SHIFT + 1)
    drawn = [(bits >> np.uint64(lowest)) % span for lowest in (8, 32)]
    shifts = np.stack(drawn, 1).astype(np.int64) - _LARGEST_SHIFT
    if not augment:
        flips[:], shifts[:] = False, 0
    images, labels = source.images("train")[places], source.labels("train")[places]
    return ImageBatch(*(torch.from_numpy(part) for part in (images, labels, flips, shifts)))


@lru_cache(maxsize=2)
def _order(num_images: int, seed: int, epoch: int) -> Places:
    """Return the images of an epoch in their order."""
    return np.argsort(hashes(seed, _ORDER, epoch * num_images, num_images), kind="stable")


def changed(batch: ImageBatch) -> torch.Tensor:
    """Return the images flipped and shifted, uint8 [B, 3, height, width]; what is moved in is black.

    Example:
        >>> row = torch.arange(1, 5, dtype=torch.uint8).expand(1, 3, 1, 4)
        >>> flips, shifts = torch.tensor([True]), torch.tensor([[0, 1]])
        >>> changed(ImageBatch(row, torch.zeros(1), flips, shifts))[0, 0].tolist()
        [[0, 4, 3, 2]]
    """
    images, most = batch.images, _LARGEST_SHIFT
    height, width = images.shape[2:]
    device = images.device
    rows = torch.arange(height, device=device) - batch.shifts[:, :1]
    columns = torch.arange(width, device=device) - batch.shifts[:, 1:]
    columns = torch.where(batch.flips[:, None], width - 1 - columns, columns)
    padded = functional.pad(images, (most, most, most, most))
    numbers = torch.arange(len(images), device=device)
    found = padded[
        numbers[:, None, None], :, (rows + most)[:, :, None], (columns + most)[:, None, :]
    ]
    return found.permute(0, 3, 1, 2)


def check_images(name: str, images: Pixels, labels: Places, num_classes: int) -> None:
    """Raise ``SpecError`` unless there are images, each with a label that is one of the classes."""
    if len(images) != len(labels) or not len(images):
        raise SpecError(f"{name} has {len(images)} images and {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise SpecError(f"{name} has a label {labels.max()}; labels are 0 to {num_classes - 1}")
