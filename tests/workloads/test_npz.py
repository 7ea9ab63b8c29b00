"""Click logs in one .npz file: who is tested, in which order, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data import open_clicks
from tersor.workloads.data.samples import MISSING
from tests.checks import assert_rejects
from tests.workloads.text_logs import ids_by_frequency, make_log, scaled


def arrays(num_samples: int = 400) -> dict[str, np.ndarray]:
    log = make_log(num_samples)
    # the first feature tells samples apart
    log.dense[:, 0] = np.arange(num_samples)
    return {
        "label": log.labels.astype(np.uint8),
        "dense": log.dense.astype(np.int32),
        "cat": log.values.astype(np.uint32),
        "src": (np.arange(num_samples) % 4 == 3).astype(np.uint8),
        "src_names": np.array(["one", "other"]),
    }


def saved(path: Path, **changed: np.ndarray | None) -> Path:
    named = {name: array for name, array in (arrays() | changed).items() if array is not None}
    np.savez(path, **named)
    return path


def rows_of(batch) -> np.ndarray:
    return np.rint(np.expm1(batch.dense[:, 0].double().numpy())).astype(int)


def test_every_sample_is_in_one_split_and_tests_are_of_collection_zero(tmp_path):
    source = open_clicks(saved(tmp_path / "log.npz"))
    assert source.name == "log.npz"
    train = source.read("train", 0, source.num_samples("train"))
    test = source.read("test", 0, source.num_samples("test"))
    # a fifth of the 300 samples of collection 0
    assert len(test) == 60
    assert (rows_of(test) % 4 != 3).all()
    assert sorted([*rows_of(train), *rows_of(test)]) == list(range(400))
    assert not np.array_equal(rows_of(train), np.sort(rows_of(train)))


def test_samples_are_what_the_file_holds(tmp_path):
    held = arrays()
    source = open_clicks(saved(tmp_path / "log.npz"), min_count=3)
    batch = source.read("train", 7, 100)
    rows = rows_of(batch)
    assert np.array_equal(batch.labels.numpy(), held["label"][rows])
    assert np.array_equal(batch.dense.numpy(), scaled(held["dense"][rows]))
    ids = np.stack([ids_by_frequency(column, 3) for column in held["cat"].T], 1)
    assert np.array_equal(batch.ids.numpy(), ids[rows])
    assert source.num_rows == tuple(int(column.max()) + 1 for column in ids.T)


def test_the_seed_decides_order_and_test(tmp_path):
    path = saved(tmp_path / "log.npz")
    first, again, other = (open_clicks(path, seed=seed) for seed in (1, 1, 2))
    for split in ("train", "test"):
        rows = [rows_of(one.read(split, 0, 50)).tolist() for one in (first, again, other)]
        assert rows[0] == rows[1]
        assert rows[0] != rows[2]


def test_max_rows_limits_every_table(tmp_path):
    assert max(open_clicks(saved(tmp_path / "log.npz"), max_rows=5).num_rows) == 5


def test_without_src_all_samples_may_be_tested(tmp_path):
    assert open_clicks(saved(tmp_path / "log.npz", src=None)).num_samples("test") == 80


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("label", None),
        ("dense", None),
        ("cat", np.zeros((400, 25), np.uint32)),
        ("cat", np.zeros((400, 26), np.int64)),
        ("src", np.zeros(399, np.uint8)),
        ("label", np.full(400, 2, np.uint8)),
        ("src", np.ones(400, np.uint8)),
    ],
)
def test_other_arrays_are_refused(tmp_path, name, array):
    path = saved(tmp_path / "log.npz", **{name: array})
    assert_rejects(lambda: open_clicks(path), SpecError)


def test_a_damaged_file_is_refused(tmp_path):
    path = saved(tmp_path / "log.npz")
    path.write_bytes(path.read_bytes()[:-30])
    assert_rejects(lambda: open_clicks(path), CorruptDataError)
    path.write_bytes(b"no zip file")
    assert_rejects(lambda: open_clicks(path), CorruptDataError)


def test_arrays_that_would_run_code_are_refused(tmp_path):
    path = saved(tmp_path / "log.npz", cat=np.array([{}] * 400, dtype=object))
    assert_rejects(lambda: open_clicks(path), CorruptDataError)


def test_the_real_sample_is_split_as_its_page_says():
    folder = os.environ.get("TERSOR_DATA")
    path = Path(folder or "") / "criteo_kaggle_sample.npz"
    if folder is None or not path.is_file():
        pytest.skip("TERSOR_DATA names no folder with criteo_kaggle_sample.npz")
    source = open_clicks(path)
    assert (source.num_samples("train"), source.num_samples("test")) == (156245, 27427)
    assert source.num_rows[:4] == (700, 532, 79955, 40413)
    batch = source.read("train", 0, 20000)
    assert 0.24 < float(batch.labels.mean()) < 0.27
    assert bool((batch.dense >= 0).all())
    assert torch.isfinite(batch.dense).all()
    assert MISSING == -2147483648
