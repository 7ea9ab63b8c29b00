"""Damage container files in ways that get past the checksums.

Every decision is drawn from a string of bytes, so a fuzzer or hypothesis can steer it and a
failure is repeated by repeating the bytes.
"""

from __future__ import annotations

import io
from copy import deepcopy
from dataclasses import fields
from functools import cache
from typing import Any

import torch

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.container import Reader, Writer
from tersor.errors import CorruptDataError, UnknownCodecError, UnsupportedVersionError
from tersor.types import Bound
from tests.container.signing import Parts, sign_again, take_apart

REFUSALS = (CorruptDataError, UnsupportedVersionError, UnknownCodecError)
INTERESTING: list[Any] = [None, True, False, 0, 1, -1, 2, 3, 7, 8, 31, 32, 33, 64, 127, 128, 255]
INTERESTING += [256, 2**15, 2**16, 2**20, 2**31 - 1, 2**31, 2**32, 2**62, 2**63, 2**64, 10**19]
INTERESTING += [0.0, -0.0, 0.5, 1e-320, 1e308, "", "raw", "f32", "f64", "bf16", "i8", "bool"]
INTERESTING += [[], [0], [1], [2**20], [2**31, 2**31], [0, 2**62], [200], {}, {"absolute": 0}]


class Choices:
    """Draws from a string of bytes; past its end every draw is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def below(self, limit: int) -> int:
        nbytes = max(1, -(-limit.bit_length() // 8))
        part, self._data = self._data[:nbytes], self._data[nbytes:]
        return int.from_bytes(part, "little") % max(1, limit)

    def of(self, options: list[Any]) -> Any:
        return options[self.below(len(options))]


@cache
def seed_files() -> list[bytes]:
    """One small file for every registered codec, in two chunks and a half."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 20, generator=generator).cumsum(1)
    x[3, 3], x[5, 5], x[7, 7] = float("nan"), float("inf"), 1e30
    files = []
    for codec_id in registry.codec_ids():
        stream = io.BytesIO()
        with Writer(stream) as writer:
            writer.add("x", x, _codec(codec_id), {"k": "v"}, chunk_values=128)
            writer.add("empty", x[:0], _codec(codec_id))
        files.append(stream.getvalue())
    return files


def _codec(codec_id: str) -> Codec:
    needs_bound = any(field.name == "bound" for field in fields(registry.get(codec_id)))
    return registry.create(codec_id, **({"bound": Bound.absolute(0.01)} if needs_bound else {}))


def mutate(choices: Choices) -> bytes:
    """Return a damaged file; most have valid checksums."""
    data = choices.of(seed_files())
    kind = choices.below(8)
    if kind == 0:
        return bytes(_edit(data, choices))
    if kind == 1:
        return sign_again(bytes(_edit(data, choices)))
    parts = take_apart(data)
    if kind == 2:
        _change_index(parts, choices)
    else:
        payloads = [parts.payload(number) for number in range(len(parts.sections))]
        number = choices.below(len(payloads))
        payloads[number] = bytes(_edit(payloads[number], choices))
        parts.set_payloads(payloads)
    return parts.sign()


def _edit(data: bytes, choices: Choices) -> bytearray:
    edited = bytearray(data)
    for _ in range(1 + choices.below(4)):
        position = choices.below(len(edited) + 1)
        match choices.below(8):
            case 0:
                del edited[position:]
            case 1:
                edited[position:position] = bytes([choices.below(256)]) * choices.below(65)
            case 2:
                del edited[position : position + choices.below(16)]
            case 3:
                edited[position : position + 4] = choices.below(2**32).to_bytes(4, "little")
            case 4:
                edited[position : position + 8] = b"\xff" * 8
            case _:
                edited[position : position + 1] = bytes([choices.below(256)])
    return edited


def _change_index(parts: Parts, choices: Choices) -> None:
    for _ in range(1 + choices.below(2)):
        node, key = parts.index, "arrays"
        for _ in range(choices.below(5)):
            child = node[key]
            if isinstance(child, dict) and child:
                node, key = child, choices.of(sorted(child))
            elif isinstance(child, list) and child:
                node, key = child, choices.below(len(child))
        node[key] = deepcopy(choices.of(INTERESTING))


def read_or_refuse(data: bytes) -> bool:
    """Read everything; return False when the file was refused, raise for any other failure."""
    try:
        with Reader(io.BytesIO(data)) as reader:
            reader.verify()
            for name, entry in reader.arrays.items():
                y = reader.read(name)
                if tuple(y.shape) != entry.info.shape or y.dtype != entry.info.dtype:
                    raise AssertionError(f"read {y.shape} {y.dtype} for {entry.info}")
    except REFUSALS:
        return False
    return True
