"""Standard input and output as binary streams, and files that appear whole or not at all."""

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
    """Return standard input as a real file: itself, or an unnamed copy where it is a pipe."""
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
    """Where a command writes its bytes.

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
        """Itself, as what takes the bytes."""
        return cast("BinaryIO", self)

    def writable(self) -> bool:
        """See ``io.RawIOBase.writable``."""
        return True

    def write(self, data: object) -> int:
        """Pass bytes on and count them."""
        taken = self._stream.write(cast("bytes", data))
        self.nbytes += taken
        return taken

    def flush(self) -> None:
        """See ``io.RawIOBase.flush``."""
        self._stream.flush()


def check_output(name: str, *, force: bool, as_json: bool) -> None:
    """Refuse an output that could not be written, before any work is done.

    Raises:
        SpecError: the file exists and ``force`` is not set, it is a folder, or standard output is
            a terminal or taken by the JSON result.
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
    """Open a file that takes its name only when the block succeeds, or standard output."""
    path = Path(name)
    if name == STANDARD:
        yield Output(sys.stdout.buffer, None)
        sys.stdout.buffer.flush()
    elif path.exists() and not path.is_file():
        # a device or a named pipe: nothing to keep whole
        with path.open("wb") as stream:
            yield Output(stream, None)
    else:
        with atomic_write(path) as stream:
            yield Output(stream, Path(stream.name))
