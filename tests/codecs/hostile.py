"""Decode damaged payloads in a process of its own, next to forbidden pages.

``python -m tests.codecs.hostile LOG STRIDE NAME...`` decodes many damaged payloads of each named
variant, and with a STRIDE of 5 a fifth of them: others for each variant. Payload and output lie
against guard pages, memory is limited, and every decode must end within seconds. LOG gets one line before each decode that could kill the process, and one JSON line per
finding, so that whoever started the process can say what happened even if it died.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from zlib import crc32

import torch

from tersor.codecs import Codec
from tersor.errors import CorruptDataError
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.op import use_backend
from tersor.types import FLOAT_DTYPES, Bound
from tests.codecs.guard_pages import GuardedMemory
from tests.codecs.lies import SHAPE, Lie, lies
from tests.codecs.variants import PAYLOADS, build
from tests.one_by_one import decode_one

SECONDS_PER_DECODE = 20
EXTRA_NBYTES = 1 << 30
"""What may be allocated beyond the process's size after everything is loaded."""


def originals(codec: Codec, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Small tensors that reach every part of a payload, and one of several chunks."""
    generator = torch.Generator().manual_seed(11)
    table = torch.randn(9, 16, generator=generator)
    rows = table[torch.randint(0, 9, (14,), generator=generator)]
    special = rows.clone()
    special[1, 3], special[5, 0], special[7, 7] = float("nan"), float("inf"), 1e4
    yield "rows", rows.to(dtype)
    yield "special", special.to(dtype)
    yield "constant", torch.full((40,), 2.5).to(dtype)
    yield "empty", torch.zeros(0, 3, dtype=dtype)
    yield "one", torch.ones((), dtype=dtype)
    if dtype == torch.float32:
        wide = torch.randn(300, generator=generator) * 40
        yield "coded index", rows[torch.arange(400) ** 2 % 7, :8].contiguous()
        yield "wide alphabet", torch.cat([wide, torch.tensor([1e5, -1e5])])
        yield "tiles", torch.randn(90, 25, generator=generator).cumsum(1)
        yield "chunks", torch.randn(33_000, generator=generator)


def malformed(payload: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the payload itself, then what is decoded with every stride."""
    yield "whole", payload
    yield "zeros", bytes(len(payload))
    yield "ones", b"\xff" * len(payload)
    yield "longer", payload + b"\x01" * 8
    yield "padded", payload + bytes(64)


def damaged(payload: bytes, thorough: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the payload cut and changed, in many places."""
    chance = random.Random(len(payload))
    sizes = (
        range(len(payload))
        if thorough
        else chance.sample(range(len(payload)), min(20, len(payload)))
    )
    for size in sizes if payload else ():
        yield f"cut to {size}", payload[:size]
    # every third bit: all bytes, and all bits of three neighbours
    bits = range(0, 8 * len(payload), 3) if thorough else ()
    for bit in bits:
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(changed)
    for number in range(120 if payload else 0):
        yield f"edit {number}", _edited(payload, chance)
    for number in range(20):
        yield f"random {number}", chance.randbytes(chance.randrange(1, 200))


def _edited(payload: bytes, chance: random.Random) -> bytes:
    """Put telling numbers at one to three places; the first bytes are tried more often."""
    changed = bytearray(payload)
    for _ in range(chance.randrange(1, 4)):
        limit = chance.choice((48, len(payload)))
        place = chance.randrange(min(limit, len(payload)))
        number = chance.choice((0, 1, 2, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63))
        size = chance.choice((1, 2, 4, 8))
        packed = struct.pack("<Q", number & (2 ** (8 * size) - 1))[:size]
        changed[place : place + size] = packed[: len(payload) - place]
    return bytes(changed)


def decode(codec: Codec, payload: torch.Tensor, out: torch.Tensor) -> str | None:
    """Return None if the payload was decoded or refused, else what went wrong."""
    signal.alarm(SECONDS_PER_DECODE)
    try:
        decode_one(codec, payload, out)
    except CorruptDataError as error:
        message = str(error)
        return None if message and "\n" not in message else f"message {message!r}"
    except BaseException:  # noqa: BLE001 (whatever it is, it is the finding)
        return traceback.format_exc(limit=-3)
    finally:
        signal.alarm(0)
    return None


class Attack:
    """One variant's decodes, next to forbidden pages."""

    def __init__(self, name: str, log: int, stride: int) -> None:
        self._name, self._log, self._stride = name, log, stride
        self._payloads, self._outputs = GuardedMemory(1 << 20), GuardedMemory(1 << 20)
        self.codec = build(name, Bound.absolute(0.01))

    def findings(self) -> Iterator[dict[str, str]]:
        """Decode all damaged payloads; yield what was neither decoded nor refused."""
        for dtype in FLOAT_DTYPES:
            for label, x in originals(self.codec, dtype):
                torch.set_num_threads(2 if label == "chunks" else 1)
                data = bytes(self.codec.pack(x).payloads[0].tolist())
                thorough = dtype == torch.float32 and len(data) < 1000
                some = self._sample(damaged(data, thorough), f"{dtype} {label}")
                for what, changed in chain(malformed(data), some):
                    by_reference = label == "special" and what.startswith("edit")
                    case = f"{dtype} {label} {what}"
                    yield from self._decode(case, changed, tuple(x.shape), dtype, by_reference)
        some = self._sample(lies(*PAYLOADS[self._name]), "lies")
        for number, (what, payload) in enumerate(some):
            yield from self._decode(what, payload, SHAPE, torch.float32, number % 40 == 0)

    def _sample(self, cases: Iterator[Lie], what: str) -> Iterator[Lie]:
        """Return every ``stride``-th case, from another one on for each variant and input."""
        first = crc32(f"{self._name} {what}".encode()) % self._stride
        return islice(cases, first, None, self._stride)

    def _decode(
        self, what: str, data: bytes, shape: tuple[int, ...], dtype: torch.dtype, by_reference: bool
    ) -> Iterator[dict[str, str]]:
        at_end = len(data) % 8 == 0 or crc32(what.encode()) % 4 > 0
        case = f"{self._name} {what} at_end={at_end}"
        os.pwrite(self._log, case.encode().ljust(200) + b"\n", 0)
        payload = self._payloads.copy(data, at_end=at_end)
        out = self._outputs.tensor(shape, dtype, at_end=at_end)
        wrong = decode(self.codec, payload, out)
        if wrong is None and by_reference:
            case = f"reference {case}"
            with use_backend("reference"):
                wrong = decode(self.codec, payload, out)
        if wrong is not None:
            yield {"variant": self._name, "case": case, "wrong": wrong}


def warm_up(names: Sequence[str]) -> None:
    """Encode and decode with every dtype, so that kernels are compiled before memory is limited."""
    torch.set_num_threads(2)
    for name in names:
        codec = build(name, Bound.absolute(0.01))
        for dtype in FLOAT_DTYPES:
            for _, x in originals(codec, dtype):
                codec.unpack(codec.pack(x))


def main(log_path: str, stride: int, names: Sequence[str]) -> None:
    """Attack the named variants and append the findings to the log."""
    warnings.simplefilter("error")
    # threads on demand, so that the paths of large tensors are taken by small ones
    threads._MIN_NBYTES_PER_THREAD = 1
    warm_up(names)
    log = os.open(log_path, os.O_RDWR | os.O_CREAT)
    findings = Path(log_path + ".findings")
    _limit_memory()
    for name in names:
        with findings.open("a") as lines:
            for finding in Attack(name, log, stride).findings():
                lines.write(json.dumps(finding) + "\n")
                lines.flush()
            lines.write(json.dumps({"variant": name, "done": True}) + "\n")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + EXTRA_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
