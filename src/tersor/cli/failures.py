"""Conversion of exceptions to one sentence on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import typer

from tersor import _process
from tersor.errors import (
    BackendUnavailableError,
    CorruptDataError,
    SpecError,
    TersorError,
    UnknownCodecError,
)
from tersor.memory import lacks_memory

CHECK_FAILED: Final = 1
WRONG_USAGE: Final = 2
OUTPUT_CLOSED: Final = 141
"""Code that a shell reports for a program killed by SIGPIPE."""

# depending on its version, typer vendors click or uses the installed one; either way, its public
# BadParameter derives from the class of all usage errors
_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]

_USAGE_ERRORS: Final = (SpecError, UnknownCodecError, BackendUnavailableError)
_NO_MEMORY: Final = (
    "there is not enough memory; free some, or compress with a smaller --chunk-values"
)
_PATH_SENTENCES: Final = {
    errno.ENOENT: "there is no file or folder {name}; check the path",
    errno.EISDIR: "{name} is a folder; name a file",
    errno.ENOTDIR: "a part of {name} is not a folder; check the path",
    errno.EACCES: "{name} cannot be opened: permission denied; check its permissions and folder",
    errno.EPERM: "{name} cannot be opened: not permitted; check its permissions and folder",
    errno.ELOOP: "{name} is a link that leads back to itself; remove it, or name another file",
    errno.ENAMETOOLONG: "{name} is too long for a file name; choose a shorter one",
}
_DEVICE_SENTENCES: Final = {
    errno.ENOSPC: "the disk is full; free some space, or write elsewhere with -o",
    errno.EDQUOT: "your disk quota is used up; free some space, or write elsewhere with -o",
    errno.EFBIG: "the file would become larger than this system allows; write elsewhere with -o",
    errno.EROFS: "the disk is read-only; write elsewhere with -o",
}


def exit_code_of(call: Callable[[], int]) -> int:
    """Run a command and return its exit code; report any failure that a user can cause in a sentence."""
    try:
        code = call()
        # detects a closed pipe here instead of at interpreter exit
        sys.stdout.flush()
    except typer.Exit as request:
        return request.exit_code
    except BrokenPipeError:
        _discard_stdout()
        return OUTPUT_CLOSED
    except (KeyboardInterrupt, typer.Abort) as error:
        left = str(error) or _process.NOTHING_LEFT
        sentence, code = f"interrupted; {left}", _process.INTERRUPTED
    except _UsageError as error:
        sentence, code = _usage_sentence(error), WRONG_USAGE
    except _USAGE_ERRORS as error:
        sentence, code = str(error), WRONG_USAGE
    except TersorError as error:
        lacks_advice = isinstance(error, CorruptDataError) and ";" not in str(error)
        way_out = "; get a fresh copy of the file" if lacks_advice else ""
        sentence, code = f"{error}{way_out}", CHECK_FAILED
    except OSError as error:
        sentence, code = _os_failure(error)
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        sentence, code = _NO_MEMORY, CHECK_FAILED
    else:
        return code
    with suppress(BrokenPipeError):
        sys.stderr.write(f"tersor: {' '.join(sentence.split())}\n")
    return code


def _usage_sentence(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "tersor")
    # format_message of click's errors adds the name of the option
    message = str(getattr(error, "format_message", lambda: error)()).rstrip(".")
    return f"{message}; see '{command} --help'"


def _os_failure(error: OSError) -> tuple[str, int]:
    name = "the file" if error.filename is None else repr(str(error.filename))
    number = error.errno or 0
    if number in _PATH_SENTENCES:
        return _PATH_SENTENCES[number].format(name=name), WRONG_USAGE
    sentence = _DEVICE_SENTENCES.get(number) or (
        f"{name} could not be read or written: {error.strerror or error}; "
        "check the disk, or try another place"
    )
    return sentence, CHECK_FAILED


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that flushing at exit raises no second error."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)
