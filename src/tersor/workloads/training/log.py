"""Log of a run: JSON lines for programs, and TensorBoard if it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TextIO

_KINDS: Final = ("run", "train", "eval", "balance", "probe")
"""Kinds of all lines but the last one, which holds the totals and is named by ``totals_kind``."""


def _tensorboard(folder: Path) -> Any | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))


def _end_of(path: Path) -> int | None:
    """Return the step at which a log ends; None if it is missing or incomplete."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        last = json.loads(lines[-1]) if lines else {}
        return int(last["step"]) if last["kind"] not in _KINDS else None
    except (AttributeError, KeyError, TypeError, ValueError):
        # a killed run may leave a partial line
        return None


class RunLog:
    """Lines about a run, appended to ``log.jsonl``; only rank 0 writes.

    A run that resumes from a checkpoint begins with a line of kind ``run`` at its step. Earlier lines of
    later steps belong to steps that are repeated.

    Attributes:
        lines: written by this object.
        ended_at: step of the line that ends the log; None if the last line is of another kind.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        tensorboard: bool = False,
        show: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Write to a folder, or to no file if None; ``show`` is called with each line."""
        self.lines: list[dict[str, Any]] = []
        self._show = show
        self.ended_at = None if folder is None else _end_of(folder / "log.jsonl")
        self._file: TextIO | None = None
        self._board: Any | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "log.jsonl").open("a", encoding="utf-8")
            self._board = _tensorboard(folder) if tensorboard else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in (self._file, self._board):
            if stream is not None:
                stream.close()

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Append one line and flush it, so that a killed run loses nothing."""
        line = {"kind": kind, "step": step, **values}
        self.lines.append(line)
        self.ended_at = None if kind in _KINDS else step
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._show is not None:
            self._show(line)
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)
