from __future__ import annotations

import logging

import pytest

from tersor.kernels import compiling

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
    with compiling.on_compile(seen.append):
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
    with compiling.on_compile(seen.append):
        assert outer(1) == 4
    assert seen == [True, False]


def test_a_failed_compilation_ends_too() -> None:
    @numba.njit
    def wrong(x):
        return x + "text"

    seen = []
    with compiling.on_compile(seen.append), pytest.raises(numba.TypingError):
        wrong(1)
    assert seen == [True, False]


def test_without_numba_nothing_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    seen = []
    with compiling.on_compile(seen.append):
        _fresh()(1)
    compiling.log_first_compile()
    assert seen == []


def test_a_library_user_gets_one_line_in_the_log(caplog) -> None:
    from tersor.kernels.compiling import cpu

    listener = cpu._FirstOnly()
    cpu.event.register("numba:compile", listener)
    try:
        with caplog.at_level(logging.INFO, logger="tersor"):
            _fresh()(1)
            _fresh()(1)
    finally:
        cpu.event.unregister("numba:compile", listener)
    assert [record.name for record in caplog.records] == ["tersor"]
    assert caplog.records[0].levelno == logging.INFO
