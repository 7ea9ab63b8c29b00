"""Start and end of a process. This module is imported before torch, which takes seconds to import.

It records the parent process, which may be gone once torch is imported. It also handles Ctrl-C:
``python -m tersor`` and the script ``tersor`` import this package, and torch with it, before any code of the
command runs, so only a hook installed this early sees an interrupt during the import. Other programs that
import tersor keep their own hook.
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
    """True if this process is the command, or was spawned by it."""
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
    # a spawned process leaves the message to its parent
    if "--multiprocessing-fork" not in sys.orig_argv:
        sys.stderr.write(f"tersor: interrupted; {NOTHING_LEFT}\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def end_rank(code: int) -> NoReturn:
    """Flush the output of a rank and end its process without finalizing the interpreter.

    A gloo thread releases its tensors shortly after their collective completes. If it requests the interpreter
    lock during finalization, ``std::terminate`` ends the process (seen in 1 of 12 processes that ended after
    an all-reduce, torch 2.13), and a successful training counts as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if _is_command():
    sys.excepthook = _end
