"""Small click logs as text, and a plain reader of them to compare with."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tersor.workloads.data.clicks import ClickBatch, ClickSource, Split
from tersor.workloads.data.samples import MISSING


@dataclass(frozen=True)
class Log:
    """What the lines of a log say."""

    labels: np.ndarray
    dense: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def lines(self) -> list[str]:
        return [
            "\t".join(
                [
                    str(label),
                    *("" if x == MISSING else str(x) for x in dense),
                    *("" if value == 0 else f"{value:08x}" for value in values),
                ]
            )
            for label, dense, values in zip(self.labels, self.dense, self.values, strict=True)
        ]

    def write(self, path: Path) -> Path:
        text = "".join(f"{line}\n" for line in self.lines()).encode()
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        return path


def make_log(num_samples: int, seed: int = 0, num_values: int = 40) -> Log:
    """Return a log with missing features, negative and long numbers, and repeated values."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(-3, 10 ** rng.integers(1, 10, (num_samples, 13)))
    dense[rng.random(dense.shape) < 0.2] = MISSING
    # the values are those of a seed of their own, so that logs share them
    vocabulary = np.random.default_rng(1).integers(1, 2**32, (num_values, 26))
    chosen = rng.integers(0, num_values, (num_samples, 26)) * rng.random((num_samples, 26))
    values = np.take_along_axis(vocabulary, chosen.astype(int), 0)
    values[rng.random(values.shape) < 0.1] = 0
    return Log(rng.integers(0, 2, num_samples), dense, values)


def ids_by_frequency(values: np.ndarray, min_count: int = 1) -> np.ndarray:
    """Number the values of one category as the loaders promise, one by one."""
    counts: dict[int, int] = {}
    for value in values.tolist():
        counts[value] = counts.get(value, 0) + 1
    order = sorted(counts, key=lambda value: (-counts[value], value))
    frequent = [value for value in order if counts[value] >= min_count]
    ids = {value: number + (min_count > 1) for number, value in enumerate(frequent)}
    return np.array([ids.get(value, 0) for value in values.tolist()])


def scaled(dense: np.ndarray) -> np.ndarray:
    """Scale dense features as the loaders promise."""
    return np.log1p(np.where(dense == MISSING, 0, np.maximum(dense, 0)).astype(np.float32))


def quiet(*_: object) -> None:
    """Show no progress."""


def whole(source: ClickSource, split: Split) -> ClickBatch:
    """Return all samples of a split."""
    return source.read(split, 0, source.num_samples(split))


def assert_batch_is(batch: ClickBatch, log: Log, ids: np.ndarray, rows: slice) -> None:
    assert np.array_equal(batch.labels.numpy(), log.labels[rows])
    assert np.array_equal(batch.dense.numpy(), scaled(log.dense[rows]))
    assert np.array_equal(batch.ids.numpy(), ids[rows])
    assert (batch.dense.dtype, batch.ids.dtype) == (torch.float32, torch.int64)


def all_ids(values: np.ndarray, min_count: int = 1) -> np.ndarray:
    return np.stack([ids_by_frequency(column, min_count) for column in values.T], 1)


def line(label: str = "0", dense: Sequence[str] = (), values: Sequence[str] = ()) -> bytes:
    """Return one line; the fields that are not given are empty."""
    fields = [label, *dense, *[""] * (13 - len(dense)), *values, *[""] * (26 - len(values))]
    return "\t".join(fields).encode() + b"\n"
