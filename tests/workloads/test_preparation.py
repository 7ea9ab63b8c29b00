"""Prepared logs: read at any place, after any interruption, and never when the source changed."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest
import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data import open_clicks, source_files
from tersor.workloads.data.click_cache import ClickCache
from tersor.workloads.data.preparation import prepare
from tests.arch.source_files import REPOSITORY
from tests.checks import assert_rejects
from tests.workloads.text_logs import Log, all_ids, assert_batch_is, make_log, quiet, whole


class ImpatienceError(Exception):
    """What stands for a user who had enough."""


def prepared(log: Log, path, *, part_samples: int = 40, progress=quiet):
    """Prepare with many parts, then open."""
    cache = ClickCache(path.parent / f"{path.name}.clicks")
    prepare([log.write(path)] if not path.exists() else [path], cache, progress, None, part_samples)
    return open_clicks(path, progress=quiet)


def test_any_place_equals_the_whole(tmp_path, small_blocks, generator):
    source = prepared(make_log(400), tmp_path / "train.txt")
    assert len(source.manifest.part_samples) > 5
    every = whole(source, "train")
    for _ in range(30):
        start, end = sorted(torch.randint(0, len(every) + 1, (2,), generator=generator).tolist())
        part = source.read("train", start, end - start)
        assert torch.equal(part.ids, every.ids[start:end])
        assert torch.equal(part.dense, every.dense[start:end])
        assert torch.equal(part.labels, every.labels[start:end])


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (340, 4), (0, -1), (10**12, 1)])
def test_samples_that_do_not_exist_are_refused(tmp_path, start, count):
    source = open_clicks(make_log(400).write(tmp_path / "train.txt"), progress=quiet)
    error = assert_rejects(lambda: source.read("train", start, count), SpecError)
    assert "343 samples" in str(error)
    assert_rejects(lambda: source.read("valid", 0, 1), SpecError)


def test_an_interruption_anywhere_changes_nothing(tmp_path, small_blocks):
    log = make_log(250)
    reports = []
    expected = prepared(log, tmp_path / "train.txt", progress=lambda *step: reports.append(step))
    assert {what for what, _, _ in reports} == {"reading train.txt", "numbering values"}
    for num_steps in range(len(reports)):
        again = tmp_path / f"again-{num_steps}"
        again.mkdir()
        left = iter(range(num_steps))

        def impatient(*_, left=left):
            if next(left, None) is None:
                raise ImpatienceError

        with pytest.raises(ImpatienceError):
            prepared(log, again / "train.txt", progress=impatient)
        manifest = ClickCache(again / "train.txt.clicks").manifest()
        assert manifest.stage != "ready"
        found = prepared(log, again / "train.txt")
        for split in ("train", "test"):
            assert torch.equal(whole(found, split).ids, whole(expected, split).ids)
            assert torch.equal(whole(found, split).dense, whole(expected, split).dense)
        assert sorted(path.name for path in found.cache.folder.iterdir()) == sorted(
            path.name for path in expected.cache.folder.iterdir()
        )


def test_one_interrupted_again_and_again_comes_to_an_end(tmp_path, small_blocks):
    log = make_log(250)
    for patience in range(100):
        left = iter(range(patience))

        def impatient(*_, left=left):
            if next(left, None) is None:
                raise ImpatienceError

        try:
            found = prepared(log, tmp_path / "train.txt", progress=impatient)
        except ImpatienceError:
            continue
        assert patience > 3
        assert_batch_is(whole(found, "train"), log, all_ids(log.values), slice(0, 215))
        return
    pytest.fail("it never came to an end")


KILLED = """
import os, signal, sys
from pathlib import Path
from tersor.workloads.data import source_files
from tersor.workloads.data.click_cache import ClickCache
from tersor.workloads.data.preparation import prepare

source_files._BLOCK_NBYTES = 4096
path, reports = Path(sys.argv[1]), []

def die_late(*step):
    reports.append(step)
    if len(reports) == 6:
        os.kill(os.getpid(), signal.SIGKILL)

prepare([path], ClickCache(path.parent / f"{path.name}.clicks"), die_late, None, 40)
"""


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_a_killed_preparation_goes_on_with_the_part_it_was_at(tmp_path, small_blocks, name):
    log = make_log(250)
    path = log.write(tmp_path / name)
    command = [sys.executable, "-c", KILLED, str(path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    folder = tmp_path / f"{name}.clicks"
    (folder / ".tersor-0123.tmp").write_bytes(b"what a killed process leaves")
    parts = sorted(folder.glob("*.values"))
    assert parts
    before = [part.read_bytes() for part in parts]
    reports = []
    source = prepared(log, path, progress=lambda *step: reports.append(step))
    reading = [done for what, done, _ in reports if what.startswith("reading")]
    text_nbytes = sum(len(text) + 1 for text in log.lines())
    assert len(reading) < text_nbytes // 4096
    assert "taking up what was read before" in {what for what, _, _ in reports}
    assert source.manifest.part_samples[: len(before)] == tuple(
        int.from_bytes(part[16:24], "little") for part in before
    )
    ids = all_ids(log.values)
    assert_batch_is(whole(source, "train"), log, ids, slice(0, 215))
    assert not list(folder.glob(".tersor-*"))


def test_a_part_that_changed_on_disk_is_not_taken_up(tmp_path, small_blocks):
    log, reports = make_log(250), []

    def impatient(*step):
        reports.append(step)
        if len(reports) == 6:
            raise ImpatienceError

    with pytest.raises(ImpatienceError):
        prepared(log, tmp_path / "train.txt", progress=impatient)
    part = tmp_path / "train.txt.clicks" / "00000.values"
    part.write_bytes(part.read_bytes()[:-1] + b"\xee")
    error = assert_rejects(lambda: prepared(log, tmp_path / "train.txt"), CorruptDataError)
    assert "00000.values" in str(error)


def test_two_processes_do_not_prepare_at_once(tmp_path):
    path = make_log(100).write(tmp_path / "train.txt")
    cache = ClickCache(tmp_path / "train.txt.clicks")
    reports, waits = [], threading.Event()

    def hear(what, *_):
        reports.append(what)
        waits.set()

    with cache.locked(quiet):
        other = threading.Thread(target=lambda: open_clicks(path, progress=hear))
        other.start()
        assert waits.wait(30)
        assert reports == ["waiting for another process that prepares the samples"]
    other.join()
    assert cache.manifest().stage == "ready"


def test_a_prepared_log_can_be_handed_to_another_process(tmp_path):
    source = open_clicks(make_log(100).write(tmp_path / "train.txt"), progress=quiet)
    sent = pickle.dumps(source)
    assert len(sent) < 4000
    assert torch.equal(whole(pickle.loads(sent), "test").ids, whole(source, "test").ids)


def test_a_changed_source_is_noticed(tmp_path):
    path = make_log(100).write(tmp_path / "train.txt")
    open_clicks(path, progress=quiet)
    changed = make_log(120, seed=5)
    changed.write(path)
    source = open_clicks(path, progress=quiet)
    assert_batch_is(whole(source, "train"), changed, all_ids(changed.values), slice(0, 103))


@pytest.mark.parametrize("edge", ["first", "last"])
def test_a_source_of_equal_length_and_time_is_noticed_by_its_edges(tmp_path, monkeypatch, edge):
    monkeypatch.setattr(source_files, "_EDGE_NBYTES", 100)
    log = make_log(70)
    log.values[-1, -1] = 0x12345678
    path = log.write(tmp_path / "train.txt")
    times = path.stat()
    open_clicks(path, progress=quiet)
    if edge == "first":
        log.labels[0] = 1 - log.labels[0]
    else:
        log.values[-1, -1] = 0x12345679
    log.write(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    reports = []
    source = open_clicks(path, progress=lambda *step: reports.append(step))
    assert reports
    assert_batch_is(whole(source, "train"), log, all_ids(log.values), slice(0, 60))


def test_a_source_that_grows_while_it_is_read_is_refused(tmp_path, small_blocks):
    log = make_log(100)
    path = log.write(tmp_path / "train.txt")
    extra = path.read_bytes()

    def grow(*_):
        if path.stat().st_size == len(extra):
            path.write_bytes(extra * 2)

    error = assert_rejects(lambda: open_clicks(path, progress=grow), SpecError)
    assert "train.txt changed while it was read" in str(error)
    assert open_clicks(path, progress=quiet).num_samples("test") == 28


def test_a_moved_folder_is_not_prepared_again(tmp_path):
    (tmp_path / "old").mkdir()
    path = make_log(100).write(tmp_path / "old" / "train.txt")
    open_clicks(path, progress=quiet)
    (tmp_path / "old").rename(tmp_path / "new")

    def never(*report):
        pytest.fail(f"reported {report}")

    open_clicks(tmp_path / "new", progress=never)


@pytest.mark.parametrize("damage", ["truncated", "removed", "other"])
def test_a_damaged_part_is_noticed_when_it_is_read(tmp_path, damage):
    source = open_clicks(make_log(100).write(tmp_path / "train.txt"), progress=quiet)
    part = tmp_path / "train.txt.clicks" / "00000.samples"
    if damage == "truncated":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "removed":
        part.unlink()
    else:
        part.write_bytes(bytes(part.stat().st_size))
    error = assert_rejects(lambda: source.read("train", 0, 1), CorruptDataError)
    assert "00000.samples" in str(error)
    assert "delete" in str(error)


def test_a_rank_beyond_the_values_is_never_handed_to_a_model(tmp_path):
    source = open_clicks(make_log(100).write(tmp_path / "train.txt"), progress=quiet)
    part = tmp_path / "train.txt.clicks" / "00000.samples"
    part.write_bytes(part.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
    assert_rejects(lambda: whole(source, "test"), CorruptDataError)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": "tersor-clicks", "version": 1}'])
def test_a_damaged_manifest_is_refused(tmp_path, content):
    path = make_log(100).write(tmp_path / "train.txt")
    open_clicks(path, progress=quiet)
    (tmp_path / "train.txt.clicks" / "clicks.json").write_bytes(content)
    assert_rejects(lambda: open_clicks(path, progress=quiet), CorruptDataError)


def test_other_files_in_the_folder_stay(tmp_path):
    path = make_log(100).write(tmp_path / "train.txt")
    source = open_clicks(path, cache=tmp_path / "elsewhere", progress=quiet)
    assert source.cache.folder.parent == tmp_path / "elsewhere"
    (source.cache.folder / "notes.txt").write_text("mine")
    make_log(100, seed=3).write(path)
    open_clicks(path, cache=tmp_path / "elsewhere", progress=quiet)
    assert (source.cache.folder / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "train.txt.clicks").exists()


@pytest.mark.parametrize("text", [b"", b"no click log\n", b"no end", b"\x1f\x8b broken"])
def test_a_refused_log_leaves_no_folder(tmp_path, text):
    (tmp_path / "train.txt").write_bytes(text)
    with pytest.raises((CorruptDataError, SpecError)):
        open_clicks(tmp_path / "train.txt", progress=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


def test_a_log_refused_for_a_late_line_or_its_few_samples_leaves_no_folder(tmp_path, small_blocks):
    path = make_log(400).write(tmp_path / "train.txt")
    with path.open("ab") as file:
        file.write(b"no sample\n")
    with pytest.raises(CorruptDataError, match="401"):
        prepare([path], ClickCache(tmp_path / "made"), quiet, None, 40)
    few = make_log(3).write(tmp_path / "few.txt")
    with pytest.raises(SpecError, match="too few"):
        open_clicks(few, progress=quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.txt", "train.txt"]


def test_what_was_prepared_of_a_log_that_cannot_be_read_for_now_stays(
    tmp_path, small_blocks, monkeypatch
):
    path, cache = make_log(400).write(tmp_path / "train.txt"), ClickCache(tmp_path / "made")
    read = source_files._blocks

    def failing(*args):
        for number, lines in enumerate(read(*args)):
            if number == 3:
                raise OSError(5, "Input/output error")
            yield lines

    with monkeypatch.context() as patch:
        patch.setattr(source_files, "_blocks", failing)
        with pytest.raises(SpecError, match="Input/output error"):
            prepare([path], cache, quiet, None, 40)
    assert list(cache.folder.glob("*.values"))


def test_files_of_others_survive_a_refused_log(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"no click log\n")
    (tmp_path / "train.txt.clicks").mkdir()
    (tmp_path / "train.txt.clicks/mine").write_text("mine")
    with pytest.raises(CorruptDataError):
        open_clicks(tmp_path / "train.txt", progress=quiet)
    assert [path.name for path in (tmp_path / "train.txt.clicks").iterdir()] == ["mine"]


def test_who_waits_for_a_log_that_is_refused_refuses_it_too(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"no click log\n")
    cache = ClickCache(tmp_path / "train.txt.clicks")
    waits, errors = threading.Event(), []

    def refused():
        with pytest.raises(CorruptDataError) as caught:
            open_clicks(tmp_path / "train.txt", progress=lambda *_: waits.set())
        errors.append(str(caught.value))

    with cache.locked(quiet):
        other = threading.Thread(target=refused)
        other.start()
        assert waits.wait(30)
        cache.remove()
    other.join()
    assert "train.txt" in errors[0]
    assert not cache.folder.exists()
