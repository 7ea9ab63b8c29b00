from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tersor.atomic import atomic_write
from tersor.codecs.raw import Raw
from tersor.container import Reader, Writer
from tersor.errors import SpecError


@pytest.fixture
def raw():
    return Raw()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_that_cannot_be_synchronised_is_no_error_after_the_file_is_there(
    tmp_path, monkeypatch
):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def refuse(folder, flags):
        raise PermissionError(13, "not to be read", str(folder))

    monkeypatch.setattr("tersor.atomic.os.open", refuse)
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


SLOW_WRITER = """
import sys, time, torch
from tersor.codecs.raw import Raw
from tersor.container import Writer
from tersor.types import TensorInfo

def chunks():
    for index in range(2**20):
        yield torch.full((2**16,), float(index))
        if index == 20:
            print("half way", flush=True)
            time.sleep(600)

with Writer(sys.argv[1]) as writer:
    info = TensorInfo((2**36,), torch.float32)
    writer.add_chunks("x", info, Raw(), None, chunks(), 2**16)
"""


@pytest.mark.parametrize("before", [None, b"the old file"])
def test_a_killed_writer_leaves_no_half_file(tmp_path, before):
    path = tmp_path / "x.tsr"
    if before is not None:
        path.write_bytes(before)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, path],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout.readline() == b"half way\n"
        process.send_signal(signal.SIGKILL)
    left = {name for name in names_in(tmp_path) if not name.startswith(".tersor-")}
    if before is None:
        assert left == set()
    else:
        assert left == {"x.tsr"}
        assert path.read_bytes() == before
    # what is left of the killed writer is in nobody's way
    with Writer(path):
        pass
    with Reader(path) as reader:
        assert reader.names == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_removes_the_temporary_file(tmp_path, raw, error):
    path = tmp_path / "x.tsr"
    path.write_bytes(b"the old file")

    def fail_half_way():
        with Writer(path) as writer:
            writer.add("x", torch.zeros(100), raw)
            assert len(names_in(tmp_path)) == 2
            raise error

    with pytest.raises(error):
        fail_half_way()
    assert names_in(tmp_path) == ["x.tsr"]
    assert path.read_bytes() == b"the old file"


def test_a_full_disk_removes_the_temporary_file(tmp_path, raw, monkeypatch):
    def refuse(descriptor):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"), Writer(tmp_path / "x.tsr") as writer:
        writer.add("x", torch.zeros(100), raw)
    assert names_in(tmp_path) == []


def test_an_abandoned_writer_leaves_nothing(tmp_path, raw):
    writer = Writer(tmp_path / "x.tsr")
    writer.add("x", torch.zeros(100), raw)
    del writer
    assert names_in(tmp_path) == []


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path, raw, monkeypatch
):
    path = tmp_path / "x.tsr"
    seen = []
    fsync = os.fsync

    def record(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append(("folder" if is_folder else "file", path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with Writer(path) as writer:
        writer.add("x", torch.zeros(100), raw)
    assert seen == [("file", False), ("folder", True)]


def test_permissions_follow_the_umask_or_the_file_replaced(tmp_path):
    path, plain = tmp_path / "x.tsr", tmp_path / "plain"
    with Writer(path):
        pass
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    with Writer(path):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.tsr"
    link.symlink_to(tmp_path / "folder" / "x.tsr")
    with Writer(link):
        pass
    assert link.is_symlink()
    assert names_in(tmp_path / "folder") == ["x.tsr"]


def test_a_link_that_leads_to_itself_is_an_error_of_the_system_that_names_it(tmp_path):
    one, other = tmp_path / "one.tsr", tmp_path / "other.tsr"
    one.symlink_to(other)
    other.symlink_to(one)
    for path in (one, one / "x.tsr"):
        with pytest.raises(OSError, match="symbolic links") as caught, atomic_write(path):
            pass
        assert caught.value.errno == errno.ELOOP
        assert caught.value.filename == str(path)
    assert names_in(tmp_path) == ["one.tsr", "other.tsr"]


@pytest.mark.parametrize("operation", ["open", "copymode", "replace"])
def test_an_error_names_the_file_that_was_asked_for(tmp_path, monkeypatch, operation):
    path = tmp_path / "x.tsr"
    path.write_bytes(b"old")

    def refuse(*names, **options):
        raise PermissionError(errno.EACCES, "Permission denied", *map(str, names[:1]))

    with monkeypatch.context() as patch:
        if operation == "copymode":
            # of its two names, the temporary file is the second
            patch.setattr(shutil, operation, lambda old, new: refuse(new))
        else:
            patch.setattr(Path, operation, refuse)
        with pytest.raises(PermissionError) as caught, atomic_write(path) as file:
            file.write(b"new")
    assert caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)
    assert names_in(tmp_path) == ["x.tsr"]
    assert path.read_bytes() == b"old"


def test_an_error_about_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, atomic_write(tmp_path / "x.tsr"):
        (tmp_path / "missing").read_bytes()
    assert caught.value.filename == str(tmp_path / "missing")


def test_devices_and_folders_are_not_replaced(tmp_path):
    for path in (os.devnull, tmp_path):
        with pytest.raises(SpecError, match="not a regular file"), atomic_write(path):
            pass
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
