"""The fixed-size parts of a container file: preamble, section table and trailer.

A file is ``preamble | sections | section table | index | trailer`` (docs/format.md). Everything is
little-endian. Sections tile the bytes between preamble and table exactly, each padded with zeros
to a multiple of 8, so a file has no byte that is not accounted for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from tersor.errors import CorruptDataError, UnsupportedVersionError
from tersor.raw_bytes import checksum_of

FORMAT_VERSION: Final = 1
ALIGNMENT: Final = 8
MAX_INDEX_NBYTES: Final = 2**24
"""Most bytes of JSON a file may have; about fifty thousand arrays."""

# offset size field         meaning
#      0    8 magic         b"\x89tersor\n"; anything else is not ours
#      8    2 version       format version, 1; readers refuse larger ones
#     10    2 flags         0
#     12    4 reserved      0
PREAMBLE: Final = struct.Struct("<8sHHI")
MAGIC: Final = b"\x89tersor\n"

# offset size field         meaning
#      0    8 offset        where the section starts, counted from the first byte of the preamble
#      8    8 nbytes        size of the section without its padding
#     16    8 checksum      xxh3_64 of these nbytes
SECTION: Final = struct.Struct("<QQQ")

# offset size field         meaning
#      0    8 table_offset  where the section table starts
#      8    8 num_sections  entries of 24 bytes in the section table
#     16    8 index_nbytes  size of the JSON index that follows the table, at most 16 MiB
#     24    8 checksum      xxh3_64 of preamble, section table, index and bytes 0 to 23 of this
#     32    8 magic         b"\ntsr-end"; a file that ends otherwise was cut short
TRAILER: Final = struct.Struct("<QQQQ8s")
END_MAGIC: Final = b"\ntsr-end"
_SIGNED_TRAILER_NBYTES: Final = 24


class Section(NamedTuple):
    """Where the payload of one chunk lies in the file, and its xxh3_64 checksum."""

    offset: int
    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True, eq=False)
class SectionTable(Sequence[Section]):
    """The sections of a file or of one of its arrays, stored as 24 bytes each.

    ``rows`` is uint64 of shape (number of sections, 3).
    """

    rows: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        """Return the number of sections."""
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Section: ...
    @overload
    def __getitem__(self, index: slice) -> SectionTable: ...
    def __getitem__(self, index: int | slice) -> Section | SectionTable:
        """Return one section, or a slice of the table."""
        if isinstance(index, slice):
            return SectionTable(self.rows[index])
        return Section(*self.rows[index].tolist())

    @property
    def nbytes(self) -> int:
        """Size of all sections without padding."""
        return int(self.rows[:, 1].sum())

    @property
    def largest_nbytes(self) -> int:
        """Size of the largest section without padding; 0 if there is none."""
        return int(self.rows[:, 1].max(initial=0))


class Trailer(NamedTuple):
    """The last bytes of a file: location and checksum of the section table and the index."""

    table_offset: int
    num_sections: int
    index_nbytes: int
    checksum: int


def pack_preamble() -> bytes:
    """Return the first bytes of every file."""
    return PREAMBLE.pack(MAGIC, FORMAT_VERSION, 0, 0)


def check_preamble(preamble: bytes) -> None:
    """Raise unless the preamble is valid and of a version that this reader supports.

    Raises:
        CorruptDataError: not a tersor file, or a damaged one.
        UnsupportedVersionError: a newer format version.
    """
    if len(preamble) < PREAMBLE.size or not preamble.startswith(MAGIC):
        raise CorruptDataError("this is not a tersor file; to make one: tersor compress FILE")
    _, version, flags, reserved = PREAMBLE.unpack(preamble)
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"format version {version} is newer than this tersor (which knows {FORMAT_VERSION}); "
            "upgrade tersor to read the file"
        )
    if version < 1 or flags or reserved:
        raise CorruptDataError("the preamble of the file is damaged; get a fresh copy of it")


def pack_end(table_offset: int, sections: Sequence[Section], index: bytes) -> bytes:
    """Return everything that follows the last section: table, index and trailer."""
    table = b"".join(SECTION.pack(*section) for section in sections)
    numbers = table_offset, len(sections), len(index)
    signed = TRAILER.pack(*numbers, 0, END_MAGIC)[:_SIGNED_TRAILER_NBYTES]
    checksum = checksum_of(pack_preamble() + table + index + signed)
    return table + index + TRAILER.pack(*numbers, checksum, END_MAGIC)


def parse_trailer(trailer: bytes, file_nbytes: int) -> Trailer:
    """Parse the trailer; raise ``CorruptDataError`` unless its sizes add up to ``file_nbytes``."""
    *numbers, magic = TRAILER.unpack(trailer)
    parsed = Trailer(*numbers)
    if magic != END_MAGIC:
        raise CorruptDataError("the file is cut short or has bytes added at its end")
    if parsed.index_nbytes > MAX_INDEX_NBYTES:
        raise CorruptDataError(f"an index of {parsed.index_nbytes} bytes is over the 16 MiB limit")
    table_nbytes = parsed.num_sections * SECTION.size
    stated_nbytes = parsed.table_offset + table_nbytes + parsed.index_nbytes + TRAILER.size
    if parsed.table_offset < PREAMBLE.size or stated_nbytes != file_nbytes:
        raise CorruptDataError(
            f"the file has {file_nbytes} bytes, but its trailer accounts for {stated_nbytes}"
        )
    return parsed


def check_end(preamble: bytes, table: bytes, index: bytes, trailer: bytes) -> None:
    """Raise ``CorruptDataError`` unless the trailer's checksum matches the bytes it covers."""
    signed = preamble + table + index + trailer[:_SIGNED_TRAILER_NBYTES]
    if checksum_of(signed) != TRAILER.unpack(trailer)[3]:
        raise CorruptDataError("the index of the file is damaged: its checksum does not match")


def parse_table(table: bytes, table_offset: int) -> SectionTable:
    """Parse the section table; its sections must tile the bytes before ``table_offset`` exactly.

    Raises:
        CorruptDataError: sections overlap, leave holes or lie outside of the file.
    """
    rows = np.frombuffer(table, dtype="<u8").astype(np.uint64, copy=False).reshape(-1, 3)
    offsets, nbytes = rows[:, 0], rows[:, 1]
    # checked first, so that the sums below cannot wrap around
    if (offsets > table_offset).any() or (nbytes > table_offset).any():
        raise CorruptDataError("a section lies outside of the file")
    ends = offsets + (nbytes + np.uint64(ALIGNMENT - 1)) // np.uint64(ALIGNMENT) * ALIGNMENT
    starts_expected = np.concatenate([np.array([PREAMBLE.size], np.uint64), ends])
    starts = np.concatenate([offsets, np.array([table_offset], np.uint64)])
    if (starts != starts_expected).any():
        raise CorruptDataError("the sections of the file overlap or leave holes")
    return SectionTable(rows)
