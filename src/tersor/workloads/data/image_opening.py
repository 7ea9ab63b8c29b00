"""Opens labelled images from any supported source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tersor.errors import SpecError
from tersor.workloads.data.cifar import Cifar
from tersor.workloads.data.images import ImageSource
from tersor.workloads.data.synthetic_images import SyntheticImages

SYNTHETIC: Final = "synthetic"
_NAMED: Final = {"cifar10": "cifar10_20k5k.npz"}
"""Named sources, and their files in ``TERSOR_DATA``."""


def open_images(source: str | os.PathLike[str], *, seed: int = 0) -> ImageSource:
    """Open labelled images.

    Args:
        source: ``"synthetic"``; a folder of CIFAR-10's binary batches; an ``.npz`` file; or ``"cifar10"``
            for the one in the folder of the environment variable ``TERSOR_DATA``.
        seed: of the synthetic images.

    Raises:
        CorruptDataError: the data is damaged.
        SpecError: there are no such images.

    Example:
        >>> images = open_images("synthetic")
        >>> images.images("test").shape, images.num_classes
        ((1024, 3, 32, 32), 10)
    """
    if source == SYNTHETIC:
        return SyntheticImages(seed=seed)
    path, data = Path(source), os.environ.get("TERSOR_DATA")
    if data and not path.exists() and str(source) in _NAMED:
        path = Path(data) / _NAMED[str(source)]
    if not path.exists():
        raise SpecError(
            f"there is no {path}; name a folder of CIFAR-10's binary batches, an .npz file, or 'synthetic'"
        )
    return Cifar(path)
