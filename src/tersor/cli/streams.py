"""Standard input and output as binary streams, and atomic output files."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from tersor.atomic import atomic_write
from tersor.errors import SpecError

STANDARD: Final = "-"
"""The name that stands for standard input or output."""


def standard_input(stack: ExitStack) -> BinaryIO:
    """Return standard input as a regular file, copying it to an unnamed one if it is a pipe."""
    stream = sys.stdin.buffer
    if stat.S_ISREG(_mode(stream)):
        return stream
    spool = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
    shutil.copyfileobj(stream, spool, 1 << 20)
    spool.flush()
    spool.seek(0)
    return cast("BinaryIO", spool)


def _mode(stream: BinaryIO) -> int:
    try:
        return os.fstat(stream.fileno()).st_mode
    # a stream in memory has no descriptor
    except io.UnsupportedOperation:
        return 0


class Output(io.RawIOBase):
    """The binary output of a command, which counts its bytes.

    Attributes:
        nbytes: bytes written so far.
        path: the temporary file behind the stream; None for standard output and devices.
    """

    def __init__(self, stream: BinaryIO, path: Path | None) -> None:
        super().__init__()
        self._stream = stream
        self.nbytes = 0
        self.path = path

    @property
    def stream(self) -> BinaryIO:
        """This object, typed as a binary stream."""
        return cast("BinaryIO", self)

    def writable(self) -> bool:
        """See ``io.RawIOBase.writable``."""
        return True

    def write(self, data: object) -> int:
        """Forward bytes to the stream, and count them."""
        taken = self._stream.write(cast("bytes", data))
        self.nbytes += taken
        return taken

    def flush(self) -> None:
        """See ``io.RawIOBase.flush``."""
        self._stream.flush()


def check_output(name: str, *, force: bool, as_json: bool) -> None:
    """Check that an output can be written, before any work is done.

    Raises:
        SpecError: the file exists and ``force`` is not set, it is a folder or its folder is missing, or
            standard output is a terminal or used by the JSON result.
    """
    if name == STANDARD:
        if as_json:
            raise SpecError("--json and -o - both need standard output; drop one of them")
        if sys.stdout.isatty():
            raise SpecError("standard output is a terminal; redirect it, or name a file with -o")
        return
    path = Path(name)
    if path.is_dir():
        raise SpecError(f"'{name}' is a folder; name a file with -o")
    if not path.parent.is_dir():
        raise SpecError(f"there is no folder '{path.parent}'; make it first, or choose another")
    if path.is_file() and not force:
        raise SpecError(f"'{name}' exists; name another file with -o, or overwrite it with --force")


@contextmanager
def open_output(name: str) -> Iterator[Output]:
    """Open standard output, or a file that appears only if the block succeeds."""
    # An output is closed before the stream behind it: closing flushes that, and Python 3.13 reports what fails in an
    # object that is closed only when it is freed.
    path = Path(name)
    if name == STANDARD:
        with Output(sys.stdout.buffer, None) as output:
            yield output
    elif path.exists() and not path.is_file():
        # a device or a named pipe cannot be replaced atomically
        with path.open("wb") as device, Output(device, None) as output:
            yield output
    else:
        with atomic_write(path) as stream, Output(stream, Path(stream.name)) as output:
            yield output
