"""CIFAR-10, from its binary batches or one ``.npz`` file, held in memory.

A binary batch has 3,073 bytes per image: the label, then 1,024 pixels each of red, green and blue, row
by row. The ``.npz`` file has ``y_train`` and ``y_test`` u8[N]. Its images are ``x_train`` and ``x_test``
u8[N,32,32,3], or ``x_train_filtered`` and ``x_test_filtered`` u8[3,N,32,32]. The filtered planes are
green, red minus green and blue minus green, each differenced along both rows and columns, modulo 256,
which deflate compresses better than pixels.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.images import Pixels, Places, Split, check_images

_SIDE: Final = 32
_RECORD_NBYTES: Final = 1 + 3 * _SIDE * _SIDE
_NUM_CLASSES: Final = 10
_FOLDER: Final = "cifar-10-batches-bin"
"""Folder in the published archive."""
_SPLITS: Final[tuple[Split, Split]] = ("train", "test")
_UNREADABLE: Final = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError)


class Cifar:
    """The images of one ``.npz`` file, or of a folder of binary batches.

    Args:
        path: of the file; or of the folder with ``data_batch_1.bin``, ... and ``test_batch.bin``, or of
            its parent, if the folder is named ``cifar-10-batches-bin``.

    Raises:
        CorruptDataError: a file is damaged.
        SpecError: there is no such data, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._splits = _read_folder(path) if path.is_dir() else _read_npz(path)
        for split in _SPLITS:
            check_images(f"{path}, {split}", *self._splits[split], _NUM_CLASSES)
        sizes = " + ".join(str(len(self.labels(split))) for split in _SPLITS)
        self.name = f"{path.name}, {sizes}"

    @property
    def num_classes(self) -> int:
        """See ``ImageSource.num_classes``."""
        return _NUM_CLASSES

    def images(self, split: Split) -> Pixels:
        """See ``ImageSource.images``."""
        return self._splits[split][0]

    def labels(self, split: Split) -> Places:
        """See ``ImageSource.labels``."""
        return self._splits[split][1]


def _read_folder(folder: Path) -> dict[Split, tuple[Pixels, Places]]:
    inner = folder / _FOLDER
    folder = inner if inner.is_dir() else folder
    batches = [p for p in folder.iterdir() if re.fullmatch(r"data_batch_\d+\.bin", p.name)]
    test = folder / "test_batch.bin"
    if not batches or not test.is_file():
        raise SpecError(
            f"{folder} has no data_batch_1.bin, ... and test_batch.bin; name the folder of CIFAR-10's "
            "binary version"
        )
    parts = [_read_batch(path) for path in sorted(batches)]
    images, labels = (np.concatenate(kind) for kind in zip(*parts, strict=True))
    return {"train": (images, labels), "test": _read_batch(test)}


def _read_batch(path: Path) -> tuple[Pixels, Places]:
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}") from error
    if not len(data) or len(data) % _RECORD_NBYTES:
        raise CorruptDataError(
            f"{path} has {len(data)} bytes, which are no whole images of {_RECORD_NBYTES}; fetch it again"
        )
    records = data.reshape(-1, _RECORD_NBYTES)
    images = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(images), records[:, 0].astype(np.int64)


def _read_npz(path: Path) -> dict[Split, tuple[Pixels, Places]]:
    try:
        # given a path, numpy would leave a damaged file open
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name[:2] in ("x_", "y_")}
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise CorruptDataError(f"{path} is damaged, or no .npz file") from error
    return {split: _of_arrays(path, arrays, split) for split in _SPLITS}


def _of_arrays(
    path: Path, arrays: dict[str, npt.NDArray[Any]], split: Split
) -> tuple[Pixels, Places]:
    filtered, plain = arrays.get(f"x_{split}_filtered"), arrays.get(f"x_{split}")
    labels = arrays.get(f"y_{split}")
    if _is_bytes(labels, (-1,)):
        if _is_bytes(filtered, (3, -1, _SIDE, _SIDE)):
            return _unfiltered(filtered), labels.astype(np.int64)
        if _is_bytes(plain, (-1, _SIDE, _SIDE, 3)):
            return np.ascontiguousarray(plain.transpose(0, 3, 1, 2)), labels.astype(np.int64)
    raise SpecError(
        f"{path} needs the arrays y_{split} uint8[N], and x_{split} uint8[N, 32, 32, 3] or "
        f"x_{split}_filtered uint8[3, N, 32, 32]"
    )


def _is_bytes(array: npt.NDArray[Any] | None, shape: tuple[int, ...]) -> TypeGuard[Pixels]:
    """True for a uint8 array of this shape; -1 matches any size."""
    return (
        array is not None
        and array.dtype == np.uint8
        and array.ndim == len(shape)
        and all(size in (-1, own) for size, own in zip(shape, array.shape, strict=True))
    )


def _unfiltered(planes: Pixels) -> Pixels:
    """Return the images [N, 3, 32, 32] of filtered planes [3, N, 32, 32], modulo 256."""
    summed = planes.cumsum(-2, dtype=np.uint8).cumsum(-1, dtype=np.uint8)
    green, red, blue = summed
    return np.stack([red + green, green, blue + green], axis=1)
