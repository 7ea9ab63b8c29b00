"""Locks of folders that end with the process that holds them, however it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO, Final

from tersor.errors import SpecError

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def try_lock(path: Path) -> BinaryIO | None:
    """Return the file, locked until it is closed; None where another process holds or just removed it.

    Raises:
        SpecError: the disk has no locks.
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
