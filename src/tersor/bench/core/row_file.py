"""Append-only files of result rows; each row is on disk before the next one is measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, Self

from tersor.bench.core.row_checks import text_of
from tersor.bench.core.rows import ResultRow
from tersor.errors import CorruptDataError, SpecError

_BEGINNING: Final = '{"schema": '
"""How every row begins, which identifies a truncated line as one of ours."""


def read_rows(path: str | os.PathLike[str]) -> list[ResultRow]:
    """Read a result file; a last line truncated by an interrupt is skipped.

    Raises:
        CorruptDataError: the file is not text, or a complete line is not a result row.
        SpecError: the first line shows that the file is of another kind.
    """
    rows = []
    for number, line in enumerate(text_of(path).splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            if number == 1 and not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                raise _other_kind(path)
            break
        try:
            config = json.loads(line)
            is_other = number == 1 and isinstance(config, dict) and "schema" not in config
            if not is_other:
                rows.append(ResultRow.from_config(config))
        except (json.JSONDecodeError, SpecError) as error:
            raise CorruptDataError(
                f"line {number} of {path} is not a result row: {error}"
            ) from error
        except RecursionError as error:
            raise CorruptDataError(f"line {number} of {path} is nested too deeply") from error
        if is_other:
            raise _other_kind(path)
    return rows


def _other_kind(path: str | os.PathLike[str]) -> SpecError:
    return SpecError(f"{path} holds no result rows; name a file that tersor bench wrote")


class RowFile:
    """A result file open for appending, with the rows it already contained.

    Every appended row is flushed to disk before ``append`` returns. Use it as a context manager.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False) -> None:
        """Open ``path``.

        Raises:
            SpecError: the file already contains rows, and ``resume`` is not set.
        """
        self.path = Path(path)
        self._is_new = not self.path.exists()
        self.rows: list[ResultRow] = [] if self._is_new else read_rows(self.path)
        if self.rows and not resume:
            raise SpecError(
                f"{self.path} already holds result rows ({len(self.rows)}); "
                "go on with --resume, or choose another file"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole_nbytes = data.rfind(b"\n") + 1
        if whole_nbytes != len(data):
            self._file.truncate(whole_nbytes)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the rows in the file, which a resumed run need not measure again."""
        return frozenset(row.key for row in self.rows)

    def append(self, row: ResultRow) -> None:
        """Write one row and wait until it is on disk.

        Raises:
            SpecError: the row would fail to be read back; nothing is written.
        """
        config = row.to_config()
        ResultRow.from_config(config)
        line = json.dumps(config, allow_nan=False) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)

    def close(self) -> None:
        """Close the file; further appends fail. A new file without rows is removed."""
        self._file.close()
        if self._is_new and not self.rows:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file and let any exception propagate."""
        self.close()
