"""Click logs in one ``.npz`` file, held in memory.

The arrays are ``label`` u8[N], ``dense`` i32[N,13] with -2147483648 for a missing feature, ``cat``
u32[N,26] with 0 for a missing one, and ``src`` u8[N], the collection of each sample. Without ``src`` all
samples belong to one collection.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.clicks import NUM_DENSE, NUM_TABLES, ClickBatch, Split, check_range
from tersor.workloads.data.hashes import hashes
from tersor.workloads.data.samples import Numbering, Samples
from tersor.workloads.data.vocabulary import (
    Ranks,
    ValueCounts,
    check_max_rows,
    modulo_vocabulary,
    num_at_least,
)

_TEST_PERCENT: Final = 20
_DTYPES: Final = {"label": "uint8", "dense": "int32", "cat": "uint32", "src": "uint8"}


class NpzClicks:
    """The samples of one file.

    The test split is a random fifth of collection 0; other collections may repeat its samples. All other
    samples are for training, in an order that the seed shuffles once.

    Args:
        path: of the file.
        seed: determines the test split and the order.
        max_rows: values are taken modulo this before they are numbered; None keeps all distinct.
        min_count: values that occur less often share row 0.

    Raises:
        CorruptDataError: the file is damaged.
        SpecError: it does not hold the expected arrays, or cannot be read.
    """

    def __init__(
        self, path: Path, *, seed: int = 0, max_rows: int | None = None, min_count: int = 1
    ) -> None:
        check_max_rows(max_rows)
        arrays = _arrays(path)
        ranked = [
            _ranked(modulo_vocabulary(arrays["cat"][:, table], max_rows))
            for table in range(NUM_TABLES)
        ]
        ranks = np.stack([ranks for ranks, _ in ranked], 1)
        samples = Samples(arrays["label"], arrays["dense"], ranks)
        num_values = tuple(len(counts) for _, counts in ranked)
        num_frequent = tuple(num_at_least(counts, min_count) for _, counts in ranked)
        self.name = path.name
        self._numbering = Numbering(num_values, num_frequent, min_count)
        self._samples = {
            split: samples[rows] for split, rows in _split(arrays["src"], seed).items()
        }

    @property
    def num_rows(self) -> tuple[int, ...]:
        """See ``ClickSource.num_rows``."""
        return self._numbering.num_rows

    def num_samples(self, split: Split) -> int:
        """See ``ClickSource.num_samples``."""
        return len(self._samples[split])

    def read(self, split: Split, start: int, count: int) -> ClickBatch:
        """See ``ClickSource.read``."""
        check_range(self, split, start, count)
        return self._numbering.batch(self._samples[split][start : start + count])


def _ranked(values: npt.NDArray[np.uint32]) -> tuple[Any, Any]:
    """Return the rank of each value, and the counts by rank."""
    counted = ValueCounts()
    counted.add(values)
    distinct, counts = counted.ranked()
    return Ranks(distinct)(values), counts


def _split(src: npt.NDArray[np.uint8], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each split, in its order."""
    order = np.argsort(hashes(seed, 0, 0, len(src)), kind="stable")
    candidates = order[src[order] == 0]
    test = candidates[: len(candidates) * _TEST_PERCENT // 100]
    is_train = np.ones(len(src), bool)
    is_train[test] = False
    if not len(test) or not is_train.any():
        raise SpecError(
            f"{len(candidates)} samples of collection 0 are too few to draw a test from"
        )
    return {"train": order[is_train[order]], "test": test}


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # given a path, numpy would leave a damaged file open
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _DTYPES if name in file}
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise CorruptDataError(f"{path} is damaged, or no .npz file") from error
    arrays.setdefault("src", np.zeros(len(arrays.get("label", ())), np.uint8))
    num = len(arrays["src"])
    shapes = {"label": (num,), "dense": (num, NUM_DENSE), "cat": (num, NUM_TABLES), "src": (num,)}
    for name, dtype in _DTYPES.items():
        found = arrays.get(name)
        if found is None or found.dtype != dtype or found.shape != shapes[name]:
            what = "missing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise SpecError(
                f"{path}: the array {name} must be {dtype}{list(shapes[name])}, but is {what}"
            )
    if len(arrays["label"]) and arrays["label"].max() > 1:
        raise SpecError(f"{path}: labels must be 0 or 1")
    return arrays
