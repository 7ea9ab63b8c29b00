"""Outputs of commands: closed in order, and complete when they are."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from tersor.cli import streams
from tersor.cli.streams import STANDARD, open_output


def test_an_output_is_closed_before_its_file(tmp_path):
    path = tmp_path / "out.bin"
    with open_output(str(path)) as output:
        output.stream.write(b"abc")
        file = output._stream
        assert not output.closed
    # freeing an open output would flush the closed file, which Python 3.13 reports on stderr
    assert output.closed
    assert file.closed
    assert path.read_bytes() == b"abc"
    assert output.nbytes == 3


def test_an_output_of_a_failed_command_is_closed_too(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_output(str(tmp_path / "out.bin")) as output:
        raise KeyboardInterrupt
    assert output.closed
    assert not list(tmp_path.iterdir())


def test_standard_output_is_flushed_but_stays_open(monkeypatch):
    raw = io.BytesIO()
    buffer = io.BufferedWriter(raw)
    monkeypatch.setattr(streams.sys, "stdout", SimpleNamespace(buffer=buffer))
    with open_output(STANDARD) as output:
        output.stream.write(b"abc")
    assert raw.getvalue() == b"abc"
    assert output.closed
    assert not buffer.closed
