"""Take a container file apart, change any part, and sign the result again.

Altered files are usually stopped by a checksum; signing them again is how a test reaches the
checks behind it. Nothing here is shared with the reader but the names of the fields.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import xxhash

PREAMBLE_NBYTES = 16
TRAILER_NBYTES = 40


@dataclass
class Parts:
    """A file as it can be edited; ``sections`` are [offset, nbytes, checksum] lists."""

    preamble: bytes
    body: bytes
    sections: list[list[int]]
    index: Any
    raw_index: bytes | None = None
    trailing: bytes = b""
    trailer_changes: dict[str, int] = field(default_factory=dict)

    def payload(self, number: int) -> bytes:
        offset, nbytes, _ = self.sections[number]
        return self.body[offset - PREAMBLE_NBYTES : offset - PREAMBLE_NBYTES + nbytes]

    def set_payloads(self, payloads: list[bytes]) -> None:
        """Lay the payloads out as a writer does, with right offsets and checksums."""
        self.body, self.sections = b"", []
        for payload in payloads:
            offset = PREAMBLE_NBYTES + len(self.body)
            self.sections.append([offset, len(payload), xxhash.xxh3_64_intdigest(payload)])
            self.body += payload + bytes(-len(payload) % 8)

    def sign(self) -> bytes:
        """Return the file with the checksum that its index, table and trailer need."""
        index = self.raw_index
        if index is None:
            index = json.dumps(self.index, separators=(",", ":")).encode()
        table = b"".join(struct.pack("<QQQ", *section) for section in self.sections)
        numbers = {
            "table_offset": PREAMBLE_NBYTES + len(self.body),
            "num_sections": len(self.sections),
            "index_nbytes": len(index),
        } | self.trailer_changes
        signed = struct.pack("<QQQ", *numbers.values())
        checksum = xxhash.xxh3_64_intdigest(self.preamble + table + index + signed)
        trailer = signed + struct.pack("<Q", checksum) + b"\ntsr-end"
        return self.preamble + self.body + table + index + trailer + self.trailing


def take_apart(data: bytes) -> Parts:
    """Split a valid file."""
    table_offset, num_sections, index_nbytes = struct.unpack("<QQQ", data[-TRAILER_NBYTES:-16])
    table_end = table_offset + 24 * num_sections
    sections = struct.iter_unpack("<QQQ", data[table_offset:table_end])
    return Parts(
        preamble=data[:PREAMBLE_NBYTES],
        body=data[PREAMBLE_NBYTES:table_offset],
        sections=[list(section) for section in sections],
        index=json.loads(data[table_end : table_end + index_nbytes]),
    )


def sign_again(data: bytes) -> bytes:
    """Correct every checksum of a file whose other bytes may be damaged, where it has a place.

    Sections that lie inside of the file get the checksum of the bytes they point to; a file whose
    trailer points nowhere is returned as it is.
    """
    if len(data) < PREAMBLE_NBYTES + TRAILER_NBYTES:
        return data
    signed = bytearray(data)
    table_offset, num_sections, index_nbytes = struct.unpack("<QQQ", data[-TRAILER_NBYTES:-16])
    table_end = table_offset + 24 * num_sections
    if table_end + index_nbytes + TRAILER_NBYTES != len(data):
        return data
    for entry in range(table_offset, table_end, 24):
        offset, nbytes = struct.unpack_from("<QQ", data, entry)
        if offset + nbytes <= table_offset:
            checksum = xxhash.xxh3_64_intdigest(data[offset : offset + nbytes])
            struct.pack_into("<Q", signed, entry + 16, checksum)
    covered = bytes(signed[:PREAMBLE_NBYTES] + signed[table_offset:-16])
    struct.pack_into("<Q", signed, len(signed) - 16, xxhash.xxh3_64_intdigest(covered))
    return bytes(signed)
