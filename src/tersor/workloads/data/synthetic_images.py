"""Synthetic images that a model can learn, without a download.

A class is one of five slopes of stripes, combined with a red or a blue tint. Wavelength, phase, shades and
noise are independent of the class. A flip does not change the class either, because all slopes rise to the
same side before it. Every image is a hash of (seed, split, number), so every machine generates the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tersor.errors import SpecError
from tersor.workloads.data.hashes import hashes
from tersor.workloads.data.images import Pixels, Places, Split

Chances: TypeAlias = npt.NDArray[np.float32]
_SIDE: Final = 32
_NUM_SLOPES: Final = 5
_WAVELENGTHS: Final = (6.0, 10.0)
"""Shortest and longest wavelength, in pixels."""
_TINT: Final = 48
"""Difference in red and blue, out of 255, between the two classes of a slope."""
_STREAMS: Final = {"train": 2, "test": 3}
_NOISE_STREAMS: Final = {"train": 4, "test": 5}
_NOISE: Final = 40
"""Amplitude of the noise, out of 255."""


@dataclass(frozen=True, slots=True)
class SyntheticImages:
    """Striped images of ten classes, 32 by 32 pixels.

    Attributes:
        num_train: training images.
        num_test: test images.
        seed: determines the images; the classes are the same for all seeds.
    """

    num_train: int = 8192
    num_test: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        """Require images in both splits."""
        if self.num_train < 1 or self.num_test < 1:
            raise SpecError("there must be images to train on and to be judged by")

    @property
    def name(self) -> str:
        """See ``ImageSource.name``."""
        return f"synthetic images, seed {self.seed}, {self.num_train} + {self.num_test}"

    @property
    def num_classes(self) -> int:
        """See ``ImageSource.num_classes``."""
        return 2 * _NUM_SLOPES

    def _count(self, split: Split) -> int:
        return self.num_train if split == "train" else self.num_test

    def images(self, split: Split) -> Pixels:
        """See ``ImageSource.images``."""
        return _made(self.seed, split, self._count(split))

    def labels(self, split: Split) -> Places:
        """See ``ImageSource.labels``."""
        bits = hashes(self.seed, _STREAMS[split], 0, 8 * self._count(split))[::8]
        return (bits % np.uint64(self.num_classes)).astype(np.int64)


@lru_cache(maxsize=4)
def _made(seed: int, split: Split, count: int) -> Pixels:
    bits = hashes(seed, _STREAMS[split], 0, 8 * count).reshape(count, 8)
    labels = (bits[:, 0] % np.uint64(2 * _NUM_SLOPES)).astype(np.int64)
    chances = (bits[:, 1:] >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    waves = _stripes(labels % _NUM_SLOPES, chances[:, 0], chances[:, 1])
    # the stripes alternate between two shades per image
    light, dark = 160 + 96 * chances[:, 2], 96 * chances[:, 3]
    images = ((light + dark)[:, None, None] + (light - dark)[:, None, None] * waves) / 2
    tint = np.where(labels < _NUM_SLOPES, _TINT, -_TINT).astype(np.float32) / 2
    colours = tint[:, None] * np.array([1, 0, -1], np.float32)
    coloured = images[:, None] + colours[:, :, None, None]
    noise = hashes(seed, _NOISE_STREAMS[split], 0, coloured.size // 8).view(np.uint8)
    coloured += (noise.reshape(coloured.shape).astype(np.float32) - 127.5) * (_NOISE / 127.5)
    return np.clip(coloured, 0, 255).astype(np.uint8)


def _stripes(slopes: Places, lengths: Chances, starts: Chances) -> Chances:
    """Return waves from -1 to 1, float32 [images, side, side]; wavelength and phase are scaled to 0..1."""
    shortest, longest = _WAVELENGTHS
    numbers = 2 * math.pi / (shortest + (longest - shortest) * lengths)
    angles = slopes * (math.pi / 2 / (_NUM_SLOPES - 1))
    places = np.arange(_SIDE, dtype=np.float32)
    down = (numbers * np.cos(angles)).astype(np.float32)[:, None] * places
    across = (numbers * np.sin(angles)).astype(np.float32)[:, None] * places
    begin = (2 * math.pi * starts).astype(np.float32)
    waves: Chances = np.cos(begin[:, None, None] + down[:, :, None] + across[:, None, :])
    return waves
