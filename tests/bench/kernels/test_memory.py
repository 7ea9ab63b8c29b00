from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tersor.bench.kernels import memory
from tersor.bench.kernels.memory import SMOKE_FILE_NBYTES, MemoryConfig, run_memory
from tersor.errors import SpecError, TersorError, UnknownCodecError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)


def test_a_file_goes_both_ways_within_its_bound_and_leaves_nothing(tmp_path):
    row = run_memory(MemoryConfig(nbytes=SMOKE_FILE_NBYTES, directory=str(tmp_path)))
    assert row.bound_held
    assert row.ratio > 1
    assert row.peak_extra_nbytes is not None
    assert row.peak_extra_nbytes > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_the_file_is_worked_on_by_the_threads_that_the_row_says(threads, tmp_path, monkeypatch):
    config = MemoryConfig(nbytes=2**16, directory=str(tmp_path), threads=threads)
    child, reports = memory._child, []
    monkeypatch.setattr(memory, "_child", lambda *args: reports.append(child(*args)) or reports[-1])
    row = run_memory(config)
    assert [report["threads"] for report in reports] == [threads, threads]
    assert row.threads == threads
    assert run_memory(config, done=frozenset({row.key})) is None
    assert len(reports) == 2


WATCHED_CHILD = """
import sys, time
from types import SimpleNamespace
from numba.core.dispatcher import Dispatcher
from tersor.bench.kernels import memory_child

late, reads, load, clock = [], [], Dispatcher.compile, time.perf_counter

def watched(self, signature):
    # called where a kernel is compiled, and where it is loaded from the cache on disk
    late.extend([self.py_func.__name__] * (len(reads) == 1))
    return load(self, signature)

def read():
    reads.append(None)
    return clock()

Dispatcher.compile = watched
# its own clock alone: others read theirs whenever a kernel is compiled
memory_child.time = SimpleNamespace(perf_counter=read)
memory_child.main(sys.argv[1:])
sys.exit(f"not warmed up: {late}" if late or len(reads) != 2 else 0)
"""


@pytest.mark.parametrize("codec", ["flat", "huffman"])
def test_no_kernel_is_compiled_or_loaded_while_the_clock_runs(codec, tmp_path):
    plain, packed, decoded = (str(tmp_path / name) for name in ("in.f32", "packed.tsr", "out.f32"))
    memory._write_input(Path(plain), 2**23)
    for direction, source, target in (("compress", plain, packed), ("decompress", packed, decoded)):
        command = [
            sys.executable,
            "-c",
            WATCHED_CHILD,
            direction,
            source,
            target,
            codec,
            "0.01",
            "2",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_failing_child_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.memory_child, "__name__", "tersor.no_such_module")
    with pytest.raises(TersorError, match="could not compress"):
        run_memory(MemoryConfig(nbytes=2**16, directory=str(tmp_path)))


def test_an_unknown_codec_is_refused_before_a_file_is_written(tmp_path):
    with pytest.raises(UnknownCodecError):
        run_memory(MemoryConfig(codec="no-such", directory=str(tmp_path)))


def test_a_system_without_proc_is_reported_so(monkeypatch):
    monkeypatch.setattr(memory.Path, "exists", lambda path: False)
    with pytest.raises(SpecError, match="Linux"):
        run_memory(MemoryConfig())
