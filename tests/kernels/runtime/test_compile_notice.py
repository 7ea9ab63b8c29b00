"""Compilations are announced from begin to end, those of numba and of Triton together."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from threading import Thread

import pytest

from tersor.kernels.runtime import compile_notice
from tersor.kernels.runtime.compile_notice import (
    COMPILING,
    compilation_begins,
    compilation_ends,
    compile_seconds,
    on_compile,
)
from tests.arch.source_files import REPOSITORY

pytest.importorskip("numba")
import numba

from tersor.kernels.runtime.cpu import compile_events


@pytest.fixture(autouse=True)
def _listening(monkeypatch) -> None:
    """Start as a new process does, with numba listened to."""
    monkeypatch.setattr(compile_notice, "_compilations", compile_notice._Compilations())
    compile_events.listen()


def _fresh():
    """Return a function that numba has not compiled."""

    @numba.njit
    def double(x):
        return x + x

    return double


def test_a_compilation_is_reported_from_begin_to_end() -> None:
    seen = []
    double = _fresh()
    with on_compile(seen.append):
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
    with on_compile(seen.append):
        assert outer(1) == 4
    assert seen == [True, False]


def test_a_callback_may_compile_something_itself() -> None:
    seen = []

    def callback(active: bool) -> None:
        seen.append(active)
        assert _fresh()(1) == 2

    with on_compile(callback):
        compilation_begins()
    # what the callback compiles at the beginning is part of the same pause
    assert seen == [True]


def test_a_callback_that_fails_does_not_silence_the_next_compilation() -> None:
    def failing(active: bool) -> None:
        raise OSError(f"closed: {active}")

    with on_compile(failing), pytest.raises(OSError, match="closed"):
        compilation_begins()
    seen = []
    with on_compile(seen.append):
        compilation_begins()
        compilation_ends()
    assert seen == [True, False]


def test_a_forked_child_forgets_the_compilations_of_other_threads() -> None:
    compilation_begins()
    compile_notice._compilations.forget()
    seen = []
    with on_compile(seen.append):
        compilation_begins()
        compilation_ends()
    assert seen == [True, False]


def test_a_failed_compilation_ends_too() -> None:
    @numba.njit
    def wrong(x):
        return x + "text"

    seen = []
    with on_compile(seen.append), pytest.raises(numba.TypingError):
        wrong(1)
    assert seen == [True, False]


def test_a_block_opened_while_another_thread_compiles_hears_nothing_of_it() -> None:
    seen = []
    compilation_begins()
    with on_compile(seen.append):
        compilation_ends()
        assert seen == []
        _fresh()(1)
    assert seen == [True, False]


def test_compilations_of_two_threads_overlap() -> None:
    seen = []
    with on_compile(seen.append):
        compilation_begins()
        other = Thread(target=compilation_begins)
        other.start()
        other.join()
        compilation_ends()
        assert seen == [True]
        compilation_ends()
    assert seen == [True, False]


def test_a_library_user_gets_one_warning(caplog) -> None:
    _fresh()(1)
    _fresh()(1)
    assert [record.name for record in caplog.records] == ["tersor"]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].message == COMPILING


def test_nothing_is_logged_where_a_callback_announces_it(caplog) -> None:
    with on_compile(lambda active: None):
        _fresh()(1)
    assert caplog.records == []
    _fresh()(1)
    assert len(caplog.records) == 1


def test_seconds_are_counted() -> None:
    double = _fresh()
    double(1)
    spent_s = compile_seconds()
    double(1)
    assert spent_s > 0
    assert compile_seconds() == spent_s


def test_the_warning_is_seen_without_any_logging_set_up() -> None:
    script = (
        "import numba\n"
        "from tersor.kernels.runtime.cpu import intrinsics\n"
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
    assert done.stderr == f"{COMPILING}\n"
    assert done.stdout == ""
