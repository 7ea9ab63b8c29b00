"""Made-up images that can be learned: no download.

A class is a slope of stripes, of which there are five, and whether they are rather red or rather blue.
Their wavelength, their place, the shades and the noise over them say nothing about it, and neither does
a flip: all slopes rise to the same side before one. Every image is a hash of (seed, split, number), so
that every machine makes the same.
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
"""Shortest and longest, in pixels."""
_TINT: Final = 48
"""By how much of 255 a class is redder or bluer than the other of its slope."""
_STREAMS: Final = {"train": 2, "test": 3}
_NOISE_STREAMS: Final = {"train": 4, "test": 5}
_NOISE: Final = 40
"""Most that noise adds to a pixel, or takes from it, of 255."""


@dataclass(frozen=True, slots=True)
class SyntheticImages:
    """Striped images of ten classes, 32 by 32 pixels.

    Attributes:
        num_train: images to train on.
        num_test: images to judge by.
        seed: another one draws other images of the same classes.
    """

    num_train: int = 8192
    num_test: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a source without images."""
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
    # two shades per image, between which the stripes change
    light, dark = 160 + 96 * chances[:, 2], 96 * chances[:, 3]
    images = ((light + dark)[:, None, None] + (light - dark)[:, None, None] * waves) / 2
    tint = np.where(labels < _NUM_SLOPES, _TINT, -_TINT).astype(np.float32) / 2
    colours = tint[:, None] * np.array([1, 0, -1], np.float32)
    coloured = images[:, None] + colours[:, :, None, None]
    noise = hashes(seed, _NOISE_STREAMS[split], 0, coloured.size // 8).view(np.uint8)
    coloured += (noise.reshape(coloured.shape).astype(np.float32) - 127.5) * (_NOISE / 127.5)
    return np.clip(coloured, 0, 255).astype(np.uint8)


def _stripes(slopes: Places, lengths: Chances, starts: Chances) -> Chances:
    """Return waves between -1 and 1, float32 [images, side, side]; lengths and starts are 0 to 1."""
    shortest, longest = _WAVELENGTHS
    numbers = 2 * math.pi / (shortest + (longest - shortest) * lengths)
    angles = slopes * (math.pi / 2 / (_NUM_SLOPES - 1))
    places = np.arange(_SIDE, dtype=np.float32)
    down = (numbers * np.cos(angles)).astype(np.float32)[:, None] * places
    across = (numbers * np.sin(angles)).astype(np.float32)[:, None] * places
    begin = (2 * math.pi * starts).astype(np.float32)
    waves: Chances = np.cos(begin[:, None, None] + down[:, :, None] + across[:, None, :])
    return waves
