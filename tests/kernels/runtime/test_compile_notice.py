from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tersor.kernels.runtime import compile_notice
from tests.arch.source_files import REPOSITORY

numba = pytest.importorskip("numba")


def _fresh():
    """Return a function that numba has not compiled."""

    @numba.njit
    def double(x):
        return x + x

    return double


def test_a_compilation_is_reported_from_begin_to_end() -> None:
    seen = []
    double = _fresh()
    with compile_notice.on_compile(seen.append):
        assert double(2) == 4
        assert seen == [True, False]
        # compiled already
        assert double(3) == 6
    assert seen == [True, False]
    assert _fresh()(2) == 4
    assert seen == [True, False]


def test_nested_compilations_count_as_one() -> None:
    inner = _fresh()

    @numba.njit
    def outer(x):
        return inner(x) + inner(x)

    seen = []
    with compile_notice.on_compile(seen.append):
        assert outer(1) == 4
    assert seen == [True, False]


def test_a_failed_compilation_ends_too() -> None:
    @numba.njit
    def wrong(x):
        return x + "text"

    seen = []
    with compile_notice.on_compile(seen.append), pytest.raises(numba.TypingError):
        wrong(1)
    assert seen == [True, False]


def test_without_numba_nothing_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(compile_notice, "find_spec", lambda name: None)
    seen = []
    with compile_notice.on_compile(seen.append):
        _fresh()(1)
    compile_notice.log_first_compile()
    assert seen == []


@contextmanager
def _first_only():
    from tersor.kernels.runtime.cpu import compile_events as cpu

    listener = cpu._FirstOnly()
    cpu.event.register("numba:compile", listener)
    try:
        yield
    finally:
        cpu.event.unregister("numba:compile", listener)


def test_a_library_user_gets_one_warning(caplog) -> None:
    with _first_only():
        _fresh()(1)
        _fresh()(1)
    assert [record.name for record in caplog.records] == ["tersor"]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].message == compile_notice.COMPILING


def test_nothing_is_logged_where_a_callback_tells_it(caplog) -> None:
    with _first_only():
        with compile_notice.on_compile(lambda active: None):
            _fresh()(1)
        assert caplog.records == []
        _fresh()(1)
    assert len(caplog.records) == 1


def test_the_warning_is_seen_without_any_logging_set_up() -> None:
    script = (
        "import numba, sys\n"
        "from tersor.kernels.runtime import compile_notice\n"
        "compile_notice.log_first_compile()\n"
        "numba.njit(lambda x: x + x)(1)\n"
        "numba.njit(lambda x: x + x)(1.0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == f"{compile_notice.COMPILING}\n"
    assert done.stdout == ""


def test_seconds_of_numba_are_counted_once_it_is_listened_to() -> None:
    compile_notice.count_numba_compiles()
    double = _fresh()
    before = compile_notice.compile_seconds()
    double(1)
    spent = compile_notice.compile_seconds() - before
    double(1)
    assert spent > 0
    assert compile_notice.compile_seconds() == before + spent


def test_seconds_of_triton_are_counted_and_other_listeners_stay(monkeypatch) -> None:
    knobs = pytest.importorskip("triton").knobs
    from tersor.kernels.runtime.gpu import compile_events as gpu

    heard = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **facts: heard.append(facts))
    gpu.count_compiles.__wrapped__()
    before = compile_notice.compile_seconds()
    times = SimpleNamespace(total=2_000_000)
    knobs.compilation.listener(src=None, times=times, cache_hit=False)
    assert compile_notice.compile_seconds() == before + 2.0
    assert heard == [{"src": None, "times": times, "cache_hit": False}]
