"""Progress bar on the terminal during the preparation of data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tersor.workloads.data.click_cache import Progress as Report


@contextmanager
def terminal_bar() -> Iterator[Report]:
    """Show a bar on stderr from the first report on; nothing is shown if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    bar = Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
    )
    task = bar.add_task("", total=None)
    shown = ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal shown
        if not console.is_terminal:
            return
        if what != shown:
            # restart the estimate: activities differ in speed
            shown = what
            bar.reset(task, description=escape(what), total=total or None)
            bar.start()
        bar.update(task, completed=done, total=total or None)

    try:
        yield report
    finally:
        # stopping a bar that never started would print an empty line
        if shown:
            bar.stop()
