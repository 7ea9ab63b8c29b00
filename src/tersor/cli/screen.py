"""Terminal output: tables on stdout; messages, progress and status on stderr."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, NoReturn

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from tersor.kernels.runtime.compile_notice import COMPILING, on_compile

_LARGE_NBYTES: Final = 32 * 2**20
"""Smaller inputs are processed before a progress bar could be read."""

_PIPED_WIDTH: Final = 160
"""Width of tables without a terminal: rich's default of 80 columns truncates names and specs."""


_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


class _Console(Console):
    """A console that reports a closed pipe instead of ending the process."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error that rich caught."""
        raise BrokenPipeError


class Screen:
    """The output of one command.

    Args:
        as_json: write the result as JSON; nothing else goes to stdout, and no progress is shown.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else max(_PIPED_WIDTH, shutil.get_terminal_size()[0])
        self._out = _Console(width=width, highlight=False)
        self._err = _Console(stderr=True, highlight=False)
        self._lock = Lock()
        self._has_bar = False
        self._status: Status | None = None
        self._has_announced_compiling = False

    def say(self, sentence: str) -> None:
        """Write one line to stderr; markup in it is not interpreted."""
        self._err.print(escape(sentence), soft_wrap=True)

    def result(self, values: Mapping[str, Any], *shown: RenderableType) -> None:
        """Write the result to stdout: ``values`` if JSON was requested, else the renderables."""
        if self.as_json:
            sys.stdout.write(json.dumps(values, allow_nan=False, indent=2) + "\n")
            return
        for item in shown:
            self._out.print(item)

    @contextmanager
    def progress(self, label: str, total_nbytes: int) -> Iterator[Callable[[int], None]]:
        """Show a bar during the block if the input is large; call the yielded function with bytes done."""
        if self.as_json or not self._err.is_terminal or total_nbytes < _LARGE_NBYTES:
            yield _ignore
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        bar = Progress(*columns, TimeRemainingColumn(), console=self._err, transient=True)
        task = bar.add_task(escape(label), total=total_nbytes)
        with self._live(bar):
            yield lambda nbytes: bar.advance(task, nbytes)

    @contextmanager
    def steps(self, label: str) -> Iterator[Callable[[int, int, str], None]]:
        """Show a bar of steps; call the yielded function with (steps done, total, next activity)."""
        if self.as_json or not self._err.is_terminal:
            yield _ignore
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
        bar = Progress(*columns, TimeRemainingColumn(), console=self._err, transient=True)
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, what: str) -> None:
            text = escape(f"{label}: {what}")
            bar.update(task, completed=done, total=total, description=text)

        with self._live(bar):
            yield show

    @contextmanager
    def _live(self, bar: Progress) -> Iterator[None]:
        with bar:
            self._has_bar = True
            try:
                yield
            finally:
                self._has_bar = False

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Show a notice whenever kernels are compiled inside the block."""
        with on_compile(self._show_compiling):
            try:
                yield
            finally:
                self._show_compiling(False)

    def _show_compiling(self, active: bool) -> None:
        with self._lock:
            # a terminal has one live display, so above a bar, and in a log, a line is written once
            if self._has_bar or not self._err.is_terminal:
                if active and not self._has_announced_compiling:
                    self._has_announced_compiling = True
                    self.say(COMPILING)
            elif active and self._status is None:
                self._status = self._err.status(COMPILING)
                self._status.start()
            elif not active and self._status is not None:
                self._status.stop()
                self._status = None


def _ignore(*_: object) -> None:
    """Do nothing; stands in for progress callbacks that are not shown."""


def printable(text: str) -> str:
    r"""Escape unprintable characters in untrusted text, such as terminal control sequences.

    Example:
        >>> printable("weight"), printable("a\x1b[2J")
        ('weight', 'a\\x1b[2J')
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def json_number(value: float) -> float | None:
    """Return a number for JSON; None replaces NaN and infinities."""
    return value if math.isfinite(value) else None


def binary_size(nbytes: int) -> str:
    """Format a number of bytes with binary units.

    Example:
        >>> binary_size(640), binary_size(3 << 20)
        ('640 B', '3.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{nbytes / 1024**power:.1f} {_UNITS[power - 1]}"
