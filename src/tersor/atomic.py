"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tersor.errors import SpecError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that appears under ``path`` only if the block ends without an exception.

    The bytes go to ``.tersor-*.tmp`` in the same folder, which is synced to disk and then renamed. An
    existing file is unchanged until then, and its permissions are copied. An exception removes the
    temporary file. A killed process may leave it behind, but never a partial file at ``path``.

    Raises:
        SpecError: ``path`` exists and is not a regular file.
        OSError: the file cannot be written, for example on a full disk or if ``path`` is a link to
            itself; the error names ``path``, never the temporary file.
    """
    # write through a link, as open() does
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    if target.exists() and not target.is_file():
        raise SpecError(f"{path} is not a regular file; open it yourself and pass the stream")
    temporary = target.with_name(f".tersor-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            if target.exists():
                shutil.copymode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power failure, if the system allows it.

    Failure, as for an unreadable folder, is ignored because the new file is already in place.
    """
    if os.name != "posix":
        return
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
