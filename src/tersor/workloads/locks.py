"""Folder locks that are released when the process that holds them ends, however it ends."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from tersor.errors import SpecError

LOCK_NAME: Final = "lock"
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def try_lock(path: Path) -> BinaryIO | None:
    """Return the file, locked until it is closed; None if another process holds or just removed it.

    Raises:
        SpecError: the file system does not support locks.
        OSError: the file cannot be opened.
    """
    import fcntl

    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        file.close()
        if error.errno in _NO_LOCKS:
            raise SpecError(
                f"the disk of {path.parent} has no file locks, so that two runs there cannot be kept "
                "apart; name a folder on another disk"
            ) from error
        raise
    file.close()
    return None


@contextmanager
def locked_folder(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Create a folder of prepared data, and prevent other processes from preparing it concurrently.

    Args:
        folder: contains the file ``lock``. The lock is released when the process ends, however it ends.
        waiting: called repeatedly while another process holds the lock.

    Raises:
        SpecError: the folder cannot be written.
    """
    while (lock := _try_folder(folder)) is None:
        waiting()
        time.sleep(0.1)
    with lock:
        yield


def _try_folder(folder: Path) -> BinaryIO | None:
    try:
        # the previous holder may have removed the folder
        folder.mkdir(parents=True, exist_ok=True)
        return try_lock(folder / LOCK_NAME)
    except OSError as error:
        raise SpecError(
            f"samples cannot be prepared in {folder} ({error.strerror}); name another folder with cache="
        ) from error
