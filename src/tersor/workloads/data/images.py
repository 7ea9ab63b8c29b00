"""Labelled images: the interface of their sources, sampling of training batches, and augmentation."""

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
    """Labelled images with random access, so that runs can resume and ranks can read their own shares."""

    @property
    def name(self) -> str:
        """Name for logs and reports; unique to the images."""

    @property
    def num_classes(self) -> int:
        """Number of possible labels, which count from 0."""

    def images(self, split: Split) -> Pixels:
        """Return all images of a split, uint8 [images, 3, height, width]."""

    def labels(self, split: Split) -> Places:
        """Return the labels of a split, int64 [images]."""


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """The stored images of a step, and the augmentation to apply to each.

    Attributes:
        images: uint8 [B, 3, height, width].
        labels: int64 [B].
        flips: bool [B], True to mirror left and right.
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

    def first(self, count: int) -> ImageBatch:
        """Return the first images of the batch."""
        parts = (self.images, self.labels, self.flips, self.shifts)
        return ImageBatch(*(part[:count] for part in parts))


def training_batch(
    source: ImageSource, seed: int, first: int, count: int, epoch_size: int, *, augment: bool
) -> ImageBatch:
    """Return ``count`` training images from number ``first`` on, where numbers run through all epochs.

    Image and augmentation depend only on the seed and the number. An epoch contains every image at most
    once, in its own order.

    Args:
        source: of the images.
        seed: of the order and the augmentation.
        first: number of the first image; ``first`` to ``first + count`` must lie in one epoch.
        count: number of images.
        epoch_size: images per epoch.
        augment: flip half of the images, and shift all by up to 3 pixels; otherwise change none.
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
    """Return the order of the images in an epoch."""
    return np.argsort(hashes(seed, _ORDER, epoch * num_images, num_images), kind="stable")


def augmented(batch: ImageBatch) -> torch.Tensor:
    """Return the images flipped and shifted, uint8 [B, 3, height, width]; uncovered pixels are black.

    Example:
        >>> row = torch.arange(1, 5, dtype=torch.uint8).expand(1, 3, 1, 4)
        >>> flips, shifts = torch.tensor([True]), torch.tensor([[0, 1]])
        >>> augmented(ImageBatch(row, torch.zeros(1), flips, shifts))[0, 0].tolist()
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
    """Raise ``SpecError`` unless there are images, each with a valid label."""
    if len(images) != len(labels) or not len(images):
        raise SpecError(f"{name} has {len(images)} images and {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise SpecError(f"{name} has a label {labels.max()}; labels are 0 to {num_classes - 1}")
