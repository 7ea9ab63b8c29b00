"""How a process begins and ends; what is set here is set before torch is imported, which takes seconds.

Who started it: by then that may be gone. And what becomes of Ctrl-C: ``python -m tersor`` and the script
``tersor`` import this package, and torch with it, before any code of the command runs, so only a hook that
is set first thing hears of an interrupt there. Other programs that import tersor keep theirs.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from types import TracebackType
from typing import Final, NoReturn

PARENT: Final = os.getppid()
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""
NOTHING_LEFT: Final = "nothing half-written is left behind"


def _is_command() -> bool:
    """Return whether this process is the command, or one that the command has spawned."""
    given = list(zip(sys.orig_argv, sys.orig_argv[1:], strict=False))
    # a spawned process has the arguments of its parent
    program = PurePath(sys.argv[0] if sys.argv else "")
    return (
        ("-m", "tersor") in given
        or program.stem == "tersor"
        or program.parts[-2:] == ("tersor", "__main__.py")
    )


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    # the process that spawned this one says it
    if "--multiprocessing-fork" not in sys.orig_argv:
        sys.stderr.write(f"tersor: interrupted; {NOTHING_LEFT}\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def end_rank(code: int) -> NoReturn:
    """End a process that was a rank, with what it printed, without finalizing the interpreter.

    A thread of gloo drops its tensors a moment after their collective is done. If it asks for the interpreter
    lock while the interpreter is being finalized, ``std::terminate`` ends the process (seen in 1 of 12 processes
    that ended after an all-reduce, torch 2.13), and a training that has succeeded counts as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if _is_command():
    sys.excepthook = _end
