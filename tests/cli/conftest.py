from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tersor.cli import main
from tersor.kernels.runtime.compile_notice import COMPILING


@dataclass(frozen=True)
class Done:
    """What a command line gave."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Stderr, without the line that a kernel new to this machine is compiled."""
        return self.err.replace(f"{COMPILING}\n", "")

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Tersor:
    """Runs command lines in the current folder, which is the test's own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = main(list(arguments))
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)

    def ok(self, *arguments: str) -> Done:
        done = self(*arguments)
        assert done.code == 0, done.err
        return done

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Run what must fail: with this code, one line of words, nothing on stdout, no new file."""
        before = sorted(self.folder.rglob("*"))
        done = self(*arguments)
        assert done.code == code, done.err
        assert done.out == ""
        assert done.words.startswith("tersor: ")
        assert done.words.count("\n") == 1, done.err
        assert sorted(self.folder.rglob("*")) == before
        return done.words


@pytest.fixture
def tersor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Tersor]:
    monkeypatch.chdir(tmp_path)
    num_threads = torch.get_num_threads()
    yield Tersor(tmp_path, capsys)
    torch.set_num_threads(num_threads)


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((300, 40), dtype=np.float32)
