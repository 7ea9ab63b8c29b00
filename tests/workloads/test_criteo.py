"""Click logs of users: every format gives the samples it holds, and mistakes get a sentence."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
import torch
from rich.console import Console

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data import open_clicks, progress
from tersor.workloads.data.criteo import open_criteo
from tests.checks import assert_rejects
from tests.workloads.text_logs import Log, all_ids, assert_batch_is, line, make_log, quiet, whole


def test_the_last_seventh_of_one_file_is_the_test(tmp_path, small_blocks):
    log = make_log(500)
    source = open_clicks(log.write(tmp_path / "train.txt"), progress=quiet)
    assert source.name == "train.txt"
    assert (source.num_samples("train"), source.num_samples("test")) == (429, 71)
    ids = all_ids(log.values)
    assert source.num_rows == tuple(int(column.max()) + 1 for column in ids.T)
    assert_batch_is(whole(source, "train"), log, ids, slice(0, 429))
    assert_batch_is(whole(source, "test"), log, ids, slice(429, 500))


def test_the_second_half_of_the_last_day_is_the_test(tmp_path):
    logs = {day: make_log(31 + day, seed=day) for day in (0, 2, 10)}
    for day, log in logs.items():
        log.write(tmp_path / f"day_{day}")
    (tmp_path / "notes.txt").write_text("not a day")
    source = open_clicks(tmp_path, progress=quiet)
    # 10 comes after 2, and the first 21 of its 41 samples are for validation
    assert (source.num_samples("train"), source.num_samples("test")) == (64, 20)
    ordered = [logs[0], logs[2], logs[10]]
    values = np.concatenate([log.values for log in ordered]) % 10_000_000
    joined = Log(
        np.concatenate([log.labels for log in ordered]),
        np.concatenate([log.dense for log in ordered]),
        values,
    )
    assert_batch_is(whole(source, "train"), joined, all_ids(values), slice(0, 64))
    assert_batch_is(whole(source, "test"), joined, all_ids(values), slice(85, 105))


def test_days_can_be_named_one_by_one_and_without_a_limit(tmp_path):
    paths = [make_log(20, seed=k).write(tmp_path / f"day_{k}.gz") for k in range(3)]
    source = open_clicks(paths[:2], max_rows=None, progress=quiet)
    assert source.num_samples("train") == 20
    values = np.concatenate([make_log(20, seed=k).values for k in range(2)])
    assert source.num_rows == tuple(len(np.unique(column)) for column in values.T)


def test_rare_values_share_row_zero(tmp_path):
    log = make_log(300)
    path = log.write(tmp_path / "train.txt")
    ids = all_ids(log.values, min_count=12)
    assert (ids == 0).any()
    source = open_clicks(path, min_count=12, progress=quiet)
    assert source.num_rows == tuple(int(column.max()) + 1 for column in ids.T)
    assert_batch_is(whole(source, "train"), log, ids, slice(0, 258))


def test_another_min_count_does_not_read_the_text_again(tmp_path):
    path = make_log(100).write(tmp_path / "train.txt")
    open_clicks(path, progress=quiet)

    def never(*report):
        pytest.fail(f"reported {report}")

    assert open_clicks(path, min_count=5, progress=never).num_rows != open_clicks(path).num_rows


def test_values_are_hashed_into_max_rows(tmp_path):
    log = make_log(300)
    source = open_clicks(log.write(tmp_path / "train.txt"), max_rows=7, progress=quiet)
    assert max(source.num_rows) <= 7
    assert_batch_is(whole(source, "train"), log, all_ids(log.values % 7), slice(0, 258))


def test_gzip_gives_the_same_samples_whatever_its_name(tmp_path, small_blocks):
    log = make_log(300)
    plain = open_clicks(log.write(tmp_path / "train.txt"), progress=quiet)
    packed = open_clicks(log.write(tmp_path / "train.txt.gz"), progress=quiet)
    (tmp_path / "renamed.tsv").write_bytes((tmp_path / "train.txt.gz").read_bytes())
    renamed = open_clicks(tmp_path / "renamed.tsv", progress=quiet)
    for other in (packed, renamed):
        assert torch.equal(whole(plain, "train").ids, whole(other, "train").ids)
        assert torch.equal(whole(plain, "train").dense, whole(other, "train").dense)


def test_a_last_line_without_its_end_counts(tmp_path):
    log = make_log(70)
    path = log.write(tmp_path / "train.txt")
    path.write_bytes(path.read_bytes()[:-1])
    source = open_clicks(path, progress=quiet)
    assert source.num_samples("train") + source.num_samples("test") == 70


def test_mistakes_get_one_sentence(tmp_path):
    path = make_log(100).write(tmp_path / "train.txt")
    for call, words in (
        (lambda: open_clicks(tmp_path / "absent.txt"), "no file"),
        (lambda: open_clicks([]), "at least one file"),
        (lambda: open_clicks(path, seed=1), "takes cache, max_rows, min_count, progress, not seed"),
        (lambda: open_clicks(path, max_rows=0), "max_rows must be"),
        (lambda: open_clicks(path, min_count=0), "min_count must be"),
        (lambda: open_clicks(path, cache=path), "name another folder with cache="),
        (lambda: open_clicks("synthetic", cache="x"), "not cache"),
        (lambda: open_clicks("synthetic", max_rows=3, num_rows=(1,)), "not both"),
    ):
        assert words in str(assert_rejects(call, SpecError))


def test_a_folder_must_hold_one_log(tmp_path):
    assert "neither" in str(assert_rejects(lambda: open_clicks(tmp_path), SpecError))
    log = make_log(20)
    log.write(tmp_path / "day_0")
    log.write(tmp_path / "day_0.gz")
    assert "both" in str(assert_rejects(lambda: open_clicks(tmp_path), SpecError))


@pytest.mark.parametrize("text", [b"", line() * 6])
def test_a_log_too_small_to_be_split_is_refused(tmp_path, text):
    (tmp_path / "train.txt").write_bytes(text)
    assert_rejects(lambda: open_clicks(tmp_path, progress=quiet), SpecError)


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = make_log(100).write(tmp_path / "day_0.gz")
    path.write_bytes(path.read_bytes()[:-100])
    error = assert_rejects(lambda: open_clicks(path, progress=quiet), CorruptDataError)
    assert "day_0.gz" in str(error)
    path.write_bytes(gzip.compress(b"x")[:4] + bytes(50))
    assert_rejects(lambda: open_clicks(path, progress=quiet), CorruptDataError)


def test_the_bar_is_shown_on_a_terminal_only(tmp_path, monkeypatch):
    path = make_log(100).write(tmp_path / "train.txt")
    for is_terminal in (True, False):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=is_terminal)
        monkeypatch.setattr(progress, "Console", lambda console=console, **_: console)
        open_criteo([path], max_rows=100 + is_terminal)
        assert ("numbering values" in shown.getvalue()) is is_terminal
