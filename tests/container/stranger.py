"""A reader of container files written from docs/format.md alone; it shares nothing with tersor.

It checks what the page says must be checked and hands out the payload bytes of every chunk.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NamedTuple

import xxhash


class Chunk(NamedTuple):
    """Values [start, stop) of an array, their shape, and the bytes that hold them."""

    start: int
    stop: int
    shape: list[int]
    payload: bytes


class Array(NamedTuple):
    """One array: its object in the index, and its chunks."""

    config: dict[str, Any]
    chunks: list[Chunk]


def read_container(data: bytes) -> dict[str, Array]:
    """Return the arrays of a file by name; a malformed file raises ValueError."""
    magic, version, flags, reserved = struct.unpack("<8sHHI", data[:16])
    require(magic == b"\x89tersor\n", "magic")
    require((version, flags, reserved) == (1, 0, 0), "preamble")
    table_offset, num_sections, index_nbytes, checksum, end = struct.unpack("<4Q8s", data[-40:])
    require(end == b"\ntsr-end", "end magic")
    require(table_offset + 24 * num_sections + index_nbytes + 40 == len(data), "sizes")
    covered = data[:16] + data[table_offset:-16]
    require(xxhash.xxh3_64_intdigest(covered) == checksum, "checksum")
    table = data[table_offset : table_offset + 24 * num_sections]
    payloads = read_sections(data, list(struct.iter_unpack("<3Q", table)), table_offset)
    arrays = {}
    for config in json.loads(data[-40 - index_nbytes : -40])["arrays"]:
        own, payloads = payloads[: config["num_chunks"]], payloads[config["num_chunks"] :]
        arrays[config["name"]] = Array(config, cut(config, own))
    require(not payloads, "sections left over")
    return arrays


def read_sections(data: bytes, table: list[tuple[int, ...]], table_offset: int) -> list[bytes]:
    payloads = []
    position = 16
    for offset, nbytes, checksum in table:
        require(offset == position, "section offset")
        payload = data[offset : offset + nbytes]
        require(xxhash.xxh3_64_intdigest(payload) == checksum, "section checksum")
        position = (offset + nbytes + 7) // 8 * 8
        require(not any(data[offset + nbytes : position]), "padding")
        payloads.append(payload)
    require(position == table_offset, "end of sections")
    return payloads


def cut(config: dict[str, Any], payloads: list[bytes]) -> list[Chunk]:
    shape, limit = config["shape"], config["chunk_values"]
    num_values, slice_values = math.prod(shape), math.prod(shape[1:])
    if len(payloads) == 1:
        return [Chunk(0, num_values, shape, payloads[0])]
    by_slice = slice_values <= limit
    size = limit // slice_values * slice_values if by_slice else limit
    require(len(payloads) == math.ceil(num_values / size), "number of chunks")
    chunks = []
    for index, payload in enumerate(payloads):
        start, stop = index * size, min(num_values, (index + 1) * size)
        slices = [(stop - start) // slice_values, *shape[1:]]
        chunks.append(Chunk(start, stop, slices if by_slice else [stop - start], payload))
    return chunks


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"malformed file: {what}")
