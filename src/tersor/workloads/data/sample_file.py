"""A file of prepared samples with random access."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import xxhash

from tersor.atomic import atomic_write
from tersor.errors import CorruptDataError
from tersor.workloads.data.clicks import NUM_DENSE, NUM_TABLES
from tersor.workloads.data.samples import Samples

# offset size field        meaning
#      0    8 magic        b"TRSCLICK"
#      8    4 version      1
#     12    4 source       index of the text file that the samples are from
#     16    8 num_samples
#     24    8 text_end     offset in that text at which the samples end, in bytes
#     32    8 checksum     xxh3 of everything that follows
#     40      labels u8[n], dense i32[n,13], categories u32[n,26]; all little-endian
_HEAD: Final = struct.Struct("<8sIIQQQ")
_MAGIC: Final = b"TRSCLICK"
_VERSION: Final = 1
_SAMPLE_NBYTES: Final = 1 + 4 * NUM_DENSE + 4 * NUM_TABLES


@dataclass(frozen=True, slots=True)
class SampleFile:
    """The header of a file.

    Attributes:
        path: of the file.
        source: index of the text file that the samples are from.
        num_samples: number of samples.
        text_end: offset in that text at which the samples end, in bytes.
        checksum: of the samples.
    """

    path: Path
    source: int
    num_samples: int
    text_end: int
    checksum: int

    @classmethod
    def write(cls, path: Path, samples: Samples, source: int, text_end: int) -> Self:
        """Write samples atomically."""
        arrays = [
            np.ascontiguousarray(samples.labels, np.uint8),
            np.ascontiguousarray(samples.dense, "<i4"),
            np.ascontiguousarray(samples.categories, "<u4"),
        ]
        hasher = xxhash.xxh3_64()
        for array in arrays:
            hasher.update(array.data)
        made = cls(path, source, len(samples), text_end, hasher.intdigest())
        fields = (_MAGIC, _VERSION, source, made.num_samples, text_end, made.checksum)
        with atomic_write(path) as file:
            file.write(_HEAD.pack(*fields))
            for array in arrays:
                file.write(array.data)
        return made

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the header of a file.

        Raises:
            CorruptDataError: it is not such a file, or has another version or the wrong length.
        """
        try:
            with path.open("rb") as file:
                head, nbytes = file.read(_HEAD.size), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise _damaged(path) from error
        if len(head) < _HEAD.size:
            raise _damaged(path)
        magic, version, source, num_samples, text_end, checksum = _HEAD.unpack(head)
        whole = nbytes == _HEAD.size + num_samples * _SAMPLE_NBYTES
        if magic != _MAGIC or version != _VERSION or not whole:
            raise _damaged(path)
        return cls(path, source, num_samples, text_end, checksum)

    def read(self, start: int, count: int) -> Samples:
        """Return samples ``start`` to ``start + count``, which must exist; the checksum is not verified.

        Raises:
            CorruptDataError: the file was removed or truncated.
        """
        samples = Samples.empty(count)
        at = _HEAD.size
        try:
            with self.path.open("rb") as file:
                for array in (samples.labels, samples.dense, samples.categories):
                    row_nbytes = array.nbytes // max(count, 1)
                    file.seek(at + start * row_nbytes)
                    if file.readinto(array.data.cast("B")) < array.nbytes:
                        raise _damaged(self.path)
                    at += self.num_samples * row_nbytes
        except OSError as error:
            raise _damaged(self.path) from error
        return samples

    def read_all(self) -> Samples:
        """Return all samples, and verify the checksum.

        Raises:
            CorruptDataError: the file is damaged.
        """
        samples = self.read(0, self.num_samples)
        hasher = xxhash.xxh3_64()
        for array in (samples.labels, samples.dense, samples.categories):
            hasher.update(array.data)
        if hasher.intdigest() != self.checksum:
            raise _damaged(self.path)
        return samples


def _damaged(path: Path) -> CorruptDataError:
    return CorruptDataError(
        f"{path.name} of the prepared samples is damaged; delete {path.parent} to prepare them anew"
    )
