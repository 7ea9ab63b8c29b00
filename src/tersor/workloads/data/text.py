"""Text files, plain, gzip or xz: lookup by name, reading in blocks, and splitting."""

from __future__ import annotations

import codecs
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from tersor.errors import CorruptDataError, SpecError

_BLOCK_NBYTES: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_XZ_MAGIC: Final = b"\xfd7zXZ\x00"
_SUFFIXES: Final = ("", ".txt", ".txt.xz", ".txt.gz")
_VALIDATION_SHARE: Final = 20
"""One part in this many, at the end of a text, is for validation if there is no separate text."""


def find_text(name: str | os.PathLike[str]) -> Path:
    """Return the file of a text, given as a path or as a name in the folder ``text`` of ``TERSOR_DATA``.

    Raises:
        SpecError: there is no such file.
    """
    path = Path(name)
    if path.is_file():
        return path
    data = os.environ.get("TERSOR_DATA")
    if data and not path.is_absolute():
        for suffix in _SUFFIXES:
            candidate = Path(data) / "text" / f"{name}{suffix}"
            if candidate.is_file():
                return candidate
    where = " or in the folder text of TERSOR_DATA" if data else ""
    raise SpecError(
        f"there is no file {name}{where}; name a text, plain or packed as .xz or .gz, or 'synthetic'"
    )


@dataclass(frozen=True, slots=True)
class TextPart:
    """The bytes ``[start, stop)`` of an uncompressed text; up to its end if ``stop`` is None."""

    path: Path
    start: int = 0
    stop: int | None = None

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes, about a megabyte at a time; blocks end at the end of a line if they contain one.

        Raises:
            CorruptDataError: a compressed file is damaged.
            SpecError: the file cannot be read.
        """
        rest, left = b"", None if self.stop is None else self.stop - self.start
        try:
            with self.path.open("rb") as raw, _unpacked(raw) as text:
                text.seek(self.start)
                while block := text.read(
                    _BLOCK_NBYTES if left is None else min(_BLOCK_NBYTES, left)
                ):
                    left = None if left is None else left - len(block)
                    # the whole block if no line ends in it
                    cut = block.rfind(b"\n") + 1 or len(block)
                    yield rest + block[:cut]
                    rest = block[cut:]
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise CorruptDataError(
                f"{self.path.name} is a damaged or truncated file; fetch it again"
            ) from error
        except OSError as error:
            raise SpecError(f"{self.path} cannot be read: {error.strerror or error}") from error
        if rest:
            yield rest

    def strings(self) -> Iterator[str]:
        """Yield the blocks decoded as UTF-8; invalid bytes become U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for block in self.blocks():
            yield decoder.decode(block)
        if last := decoder.decode(b"", final=True):
            yield last

    def train_validation_split(self) -> tuple[TextPart, TextPart]:
        """Return the training part and the validation part, which is the last twentieth.

        The cut is moved to the start of a line if possible.
        """
        total = sum(map(len, self.blocks()))
        cut = total - total // _VALIDATION_SHARE
        at = 0
        for block in self.blocks():
            if at + len(block) > cut:
                line = block.find(b"\n", cut - at) + 1
                cut = at + line if 0 < line < len(block) else cut
                break
            at += len(block)
        return TextPart(self.path, 0, cut), TextPart(self.path, cut)


def _unpacked(raw: BinaryIO) -> BinaryIO:
    magic = raw.read(len(_XZ_MAGIC))
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    return cast(BinaryIO, lzma.LZMAFile(raw)) if magic == _XZ_MAGIC else raw
