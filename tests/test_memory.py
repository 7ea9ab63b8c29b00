"""What is free is the least that anyone allows, and what does not fit is refused unallocated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tersor import memory
from tersor.errors import MemoryLimitError, SpecError
from tersor.memory import (
    check_fits,
    check_limit,
    free_nbytes,
    lacks_memory,
    raises_memory_limit,
    return_free_memory,
)
from tests.checks import assert_rejects

GIB = 2**30


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


AVAILABLE = {"proc/meminfo": f"MemTotal:  9 kB\nMemAvailable:  {8 * 2**20} kB\nHugePages: x\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (AVAILABLE, 8 * GIB),
        # a group without a limit, in one that has 4 GiB: 3 used, of which 2 are a cache
        (
            AVAILABLE
            | {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "7\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB}\n",
            },
            3 * GIB,
        ),
        # the older groups; inside a container only the root is shown
        (
            AVAILABLE
            | {
                "proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 2}\n",
                "sys/fs/cgroup/memory/memory.stat": (
                    f"active_file 7\ntotal_inactive_file {GIB // 8}\ntotal_active_file {GIB // 8}\n"
                ),
            },
            3 * GIB // 4,
        ),
        # over its limit for a moment
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "10\n",
                "sys/fs/cgroup/a/memory.current": "12\n",
            },
            0,
        ),
    ],
    ids=["unknown", "available", "group", "older group", "over"],
)
def test_free_is_the_least_that_machine_and_groups_leave(files, expected, tmp_path):
    assert free_nbytes(machine(tmp_path, files)) == expected


def test_this_machine_says_what_is_free():
    if not Path("/proc/meminfo").exists():
        pytest.skip("only Linux says what is available")
    assert 0 < free_nbytes() < 2**50


def test_a_limit_is_kept_to_the_byte():
    check_fits(100, 100, "x")
    error = assert_rejects(lambda: check_fits(101, 100, "x"), MemoryLimitError)
    assert "x takes 101 bytes" in str(error)
    assert "max_nbytes" in str(error)
    assert isinstance(error, MemoryError)


def test_without_a_limit_what_is_free_counts(monkeypatch):
    monkeypatch.setattr(memory, "free_nbytes", lambda: GIB)
    check_fits(GIB, None, "x")
    assert "free" in str(assert_rejects(lambda: check_fits(GIB + 1, None, "x"), MemoryLimitError))
    monkeypatch.setattr(memory, "free_nbytes", lambda: None)
    check_fits(2**60, None, "x")
    # too small to ask
    monkeypatch.setattr(memory, "free_nbytes", lambda: 0)
    check_fits(2**20, None, "x")


@pytest.mark.parametrize("limit", [-1, 1.5, "4G", True])
def test_a_limit_is_a_number_of_bytes(limit):
    assert "bytes" in str(assert_rejects(lambda: check_limit(limit), SpecError))


def test_what_others_raise_for_a_lack_of_memory_becomes_ours():
    @raises_memory_limit
    def fail(error: Exception) -> None:
        raise error

    allocator = "[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to"
    for error in (MemoryError("numpy"), RuntimeError(allocator)):
        with pytest.raises(MemoryLimitError, match="not enough memory"):
            fail(error)
    with pytest.raises(RuntimeError, match="shapes differ"):
        fail(RuntimeError("shapes differ"))
    # training loops wait for it by its own name
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fail(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert lacks_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert "x" in str(assert_rejects(lambda: fail(MemoryLimitError("x")), MemoryLimitError))


def test_the_largest_tensor_is_refused_by_torch_in_our_words():
    assert_rejects(
        lambda: raises_memory_limit(torch.empty)(2**50, dtype=torch.uint8), MemoryLimitError
    )


@pytest.mark.skipif(memory._malloc_trim() is None, reason="the allocator cannot give memory back")
def test_freed_memory_goes_back_to_the_system():
    def resident_nbytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    # small blocks come from the heap; the last one keeps its end from shrinking
    blocks = [bytearray(b"x" * 2**16) for _ in range(1000)]
    full = resident_nbytes()
    del blocks[:-1]
    return_free_memory()
    assert resident_nbytes() < full - 500 * 2**16
