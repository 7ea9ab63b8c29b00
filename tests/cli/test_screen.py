from __future__ import annotations

import io
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from tersor.cli.arrays.mapped import MappedSource
from tersor.cli.screen import COMPILING, Screen, binary_size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal; not a fixture, because pytest replaces stderr between the phases."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return stream


def _compile(monkeypatch: pytest.MonkeyPatch, screen: Screen) -> None:
    """Run a block in which a kernel is compiled twice."""
    heard = []

    @contextmanager
    def on_compile(callback):
        heard.append(callback)
        yield

    monkeypatch.setattr("tersor.cli.screen.on_compile", on_compile)
    with screen.compiling():
        for active in (True, False, True, False):
            heard[0](active)


def test_compiling_is_reported_once_in_a_log(monkeypatch, capsys) -> None:
    _compile(monkeypatch, Screen())
    assert capsys.readouterr().err == f"{COMPILING}\n"


def test_compiling_is_shown_as_a_status_in_a_terminal(monkeypatch) -> None:
    terminal = _terminal(monkeypatch)
    _compile(monkeypatch, Screen())
    assert COMPILING in terminal.getvalue()


def test_compiling_and_a_progress_bar_share_a_terminal(monkeypatch) -> None:
    terminal = _terminal(monkeypatch)
    screen = Screen()
    with screen.progress("compressing", 1 << 30) as advance:
        _compile(monkeypatch, screen)
        advance(1 << 29)
    shown = terminal.getvalue()
    assert shown.count(COMPILING) == 1
    assert "compressing" in shown


def test_no_progress_for_small_inputs_json_or_without_a_terminal(monkeypatch) -> None:
    terminal = _terminal(monkeypatch)
    for screen, nbytes in ((Screen(as_json=True), 1 << 30), (Screen(), 1 << 20)):
        with screen.progress("compressing", nbytes) as advance:
            advance(nbytes)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Screen().progress("compressing", 1 << 30) as advance:
        advance(1)
    assert terminal.getvalue() == ""


def test_a_command_tells_that_it_compiles(tersor, noise, monkeypatch) -> None:
    numba = pytest.importorskip("numba")
    np.save("a.npy", noise)
    read = MappedSource.chunk

    def chunk(self, chunk):
        # stands for a kernel that this machine has not seen yet
        numba.njit(lambda x: x + x)(1)
        return read(self, chunk)

    monkeypatch.setattr(MappedSource, "chunk", chunk)
    done = tersor.ok("compress", "a.npy", "--rel", "0.01")
    assert done.err.splitlines()[0] == COMPILING


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_in_binary_units(nbytes, words) -> None:
    assert binary_size(nbytes) == words
