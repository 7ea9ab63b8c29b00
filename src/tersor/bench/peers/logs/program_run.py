"""What another project's program said about one input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tersor.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRun:
    """One run, in the program's own figures.

    Attributes:
        line: of the log, where the run begins.
        device: where the program computes.
        codec: name for rows; None where the output does not say which algorithm it was.
        input: name of the file it was given, where the log says so.
        given_nbytes: bytes the program was given, where the log says so.
        encoded_nbytes: bytes it made of them, where the log says so.
        ratio: bytes given over bytes made.
        value_nbytes: bytes of one value in what it was given, where the log says so.
        encode_s: seconds to compress, if that is what is printed.
        decode_s: seconds to decompress.
        encode_gbps: 1e9 bytes given per second, if that is what is printed.
        decode_gbps: the same for decompressing.
        repeat: how often the program repeated its input.
        spec: options, JSON-ready.
        note: what a reader must know to compare the run.
    """

    line: int
    device: str
    ratio: float
    codec: str | None = None
    input: str | None = None
    given_nbytes: int | None = None
    encoded_nbytes: int | None = None
    value_nbytes: int | None = None
    encode_s: float | None = None
    decode_s: float | None = None
    encode_gbps: float | None = None
    decode_gbps: float | None = None
    repeat: int = 1
    spec: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def encoded_size(self, given_nbytes: int) -> int:
        """Return the bytes made; from the printed ratio where the size itself is not printed."""
        if self.encoded_nbytes is not None:
            return self.encoded_nbytes
        return max(1, round(given_nbytes / self.ratio))

    def encode_seconds(self, given_nbytes: int) -> float:
        """Return the seconds to compress ``given_nbytes``."""
        return _seconds(self.encode_s, self.encode_gbps, given_nbytes)

    def decode_seconds(self, given_nbytes: int) -> float:
        """Return the seconds to decompress what was made of ``given_nbytes``."""
        return _seconds(self.decode_s, self.decode_gbps, given_nbytes)


def _seconds(seconds: float | None, gbps: float | None, nbytes: int) -> float:
    if seconds is not None:
        return seconds
    if gbps is None:
        raise SpecError("a run has either the time or the speed of each direction")
    return nbytes / (gbps * 1e9)
