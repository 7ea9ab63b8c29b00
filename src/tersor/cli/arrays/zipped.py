"""Arrays in ``.npz`` archives, compressed or not, read as streams."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from tersor.chunks import Chunk
from tersor.cli.arrays.npy_header import NpyHeader, read_npy_header
from tersor.cli.arrays.source import Source
from tersor.errors import CorruptDataError, SpecError
from tersor.memory import check_fits

_SUFFIX = ".npy"


class ZippedSource(Source):
    """An array in an archive; each pass over it decompresses it again.

    The chunks of a Fortran-ordered array are spread over the whole stream, which cannot be mapped. Each
    pass then reads all of it into memory, at most ``max_nbytes``.
    """

    def __init__(
        self,
        archive: zipfile.ZipFile,
        member: zipfile.ZipInfo,
        header: NpyHeader,
        label: str,
        max_nbytes: int | None,
    ) -> None:
        super().__init__(member.filename.removesuffix(_SUFFIX), header.info)
        self._archive, self._member, self._header = archive, member, header
        self._label, self._max_nbytes = label, max_nbytes
        self.is_read_whole = header.fortran_order and len(header.info.shape) > 1

    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """See ``Source.chunk``; an array read as a whole is copied from, so that the rest is freed."""
        values = next(self.chunks([chunk]))
        return values.clone() if self.is_read_whole else values

    def chunks(self, plan: Iterable[Chunk]) -> Iterator[torch.Tensor]:
        """See ``Source.chunks``; an array read as a whole is held until the last chunk is consumed."""
        if self.is_read_whole:
            values = self._whole()
            return (values[chunk.start : chunk.stop] for chunk in plan)
        return self._read(plan)

    def _read(self, chunks: Iterable[Chunk]) -> Iterator[torch.Tensor]:
        """Yield adjacent chunks in storage order."""
        with _member_stream(self._archive, self._member, self._label) as stream:
            for index, chunk in enumerate(chunks):
                if index == 0:
                    stream.seek(self._header.nbytes + chunk.start * self.info.dtype.itemsize)
                values = torch.empty(chunk.stop - chunk.start, dtype=self.info.dtype)
                rest = values.view(torch.uint8).numpy().data
                while rest.nbytes:
                    num_read = cast("Any", stream).readinto(rest)
                    if not num_read:
                        raise CorruptDataError(f"{self._label} is cut short")
                    rest = rest[num_read:]
                if not self._header.dtype.isnative:
                    values.numpy().byteswap(inplace=True)
                yield values

    def _whole(self) -> torch.Tensor:
        """Return all values, flat and C-ordered."""
        way_out = "save it with order='C', or "
        # the stored and the reordered values
        check_fits(2 * self.info.nbytes, self._max_nbytes, self._label, way_out)
        shape = self.info.shape
        stored = next(self._read([Chunk(0, self.info.numel, shape)]))
        return stored.view(shape[::-1]).permute(*range(len(shape))[::-1]).reshape(-1)


@contextmanager
def _member_stream(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str
) -> Iterator[BinaryIO]:
    """Open one file of an archive; errors of zipfile and zlib become tersor's."""
    try:
        with archive.open(member) as stream:
            yield cast("BinaryIO", stream)
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeError, struct.error) as error:
        raise CorruptDataError(f"{label} is damaged: {error}") from error
    # an unknown compression method, or a password
    except (NotImplementedError, RuntimeError) as error:
        raise SpecError(f"{label} cannot be opened: {error}; save it anew with numpy") from error


def npz_sources(
    path: Path, archive: zipfile.ZipFile, max_nbytes: int | None
) -> tuple[list[Source], list[str]]:
    """Return the arrays of an archive, and the names of its other members.

    Args:
        path: of the archive, for errors.
        archive: open.
        max_nbytes: most memory for an array that must be read as a whole; None for the free memory.

    Raises:
        CorruptDataError: a member is damaged.
        SpecError: an array cannot be stored.
    """
    sources: list[Source] = []
    left_out: list[str] = []
    for member in archive.infolist():
        if not member.filename.endswith(_SUFFIX):
            left_out.append(f"{member.filename} (not an array)")
            continue
        label = f"array {member.filename!r} of '{path}'"
        with _member_stream(archive, member, label) as stream:
            header = read_npy_header(stream, label)
        if member.file_size != header.nbytes + header.info.nbytes:
            raise CorruptDataError(
                f"{label} has {member.file_size - header.nbytes} bytes of values, not the "
                f"{header.info.nbytes} that its shape takes"
            )
        sources.append(ZippedSource(archive, member, header, label, max_nbytes))
    return sources, left_out
