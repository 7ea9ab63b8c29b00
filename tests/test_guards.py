"""The guards of conftest.py see what they exist for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from tersor.types import DTYPES
from tests.arch.source_files import REPOSITORY
from tests.guards import leaked_env, leaked_process_groups, leaked_threads

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_fresh_memory_is_poisoned_in_every_dtype(dtype) -> None:
    like = torch.zeros(3, 4).to(dtype).t()
    for fresh in (
        torch.empty(5, dtype=dtype),
        torch.empty_like(like),
        like.new_empty((2, 3)),
        torch.empty_strided((2, 3), (1, 2), dtype=dtype),
    ):
        values = fresh.float() if dtype in FLOAT8 else fresh
        if dtype.is_floating_point or dtype.is_complex:
            assert bool(torch.isnan(values).all())
        else:
            expected = 1 if dtype == torch.bool else 0xA5
            found = fresh.contiguous().reshape(-1).view(torch.uint8)
            assert bool((found == expected).all())


def test_poison_keeps_layout_and_gradient_flags() -> None:
    x = torch.zeros(3, 4).t()
    assert torch.empty_like(x).stride() == x.stride()
    assert torch.empty(3, requires_grad=True).requires_grad
    assert torch.empty(0, 5).shape == (0, 5)
    assert torch.empty(2, device="meta").is_meta


def test_a_changed_environment_is_seen_and_undone(monkeypatch) -> None:
    monkeypatch.setenv("TERSOR_TEST_KEPT", "1")
    monkeypatch.setenv("TERSOR_TEST_LOST", "1")
    before = dict(os.environ)
    os.environ["TERSOR_TEST_KEPT"] = "2"
    os.environ["TERSOR_TEST_NEW"] = "3"
    del os.environ["TERSOR_TEST_LOST"]
    assert len(list(leaked_env(before))) == 3
    assert dict(os.environ) == before
    assert list(leaked_env(before)) == []


def test_a_thread_left_running_is_seen() -> None:
    before, stop = set(threading.enumerate()), threading.Event()
    own = threading.Thread(target=stop.wait, name="tersor-kernel_0")
    leaked = threading.Thread(target=stop.wait, name="forgotten")
    own.start()
    leaked.start()
    try:
        assert list(leaked_threads(before)) == ["the thread forgotten"]
    finally:
        stop.set()
        own.join()
        leaked.join()
    assert list(leaked_threads(before)) == []


def test_a_process_group_left_open_is_seen_and_ended(tmp_path) -> None:
    assert list(leaked_process_groups()) == []
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert list(leaked_process_groups()) == ["a process group"]
    assert list(leaked_process_groups()) == []


LEAKING = """
import os, threading, torch
from hypothesis import given, strategies as st

def test_env():
    os.environ["TERSOR_TEST_LEAK"] = "1"

def test_env_through_monkeypatch(monkeypatch):
    monkeypatch.setenv("TERSOR_TEST_LEAK", "1")

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="forgotten").start()

def test_process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

@given(st.integers(0, 3))
def test_property(n):
    assert torch.isnan(torch.empty(n)).all()
"""


def test_a_leaking_test_fails_and_its_neighbours_pass(tmp_path) -> None:
    (tmp_path / "test_leaking.py").write_text(LEAKING, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "5 passed, 3 errors" in done.stdout, done.stdout
    for leak in (
        "the environment variable TERSOR_TEST_LEAK",
        "the thread forgotten",
        "a process group",
    ):
        assert f"the test leaked {leak}\n" in done.stdout
