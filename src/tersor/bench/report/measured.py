"""Comparable result rows, reduced to the size and speed of each codec for figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tersor.bench.core.ceiling import CEILING
from tersor.bench.core.rows import ResultRow, latest
from tersor.bench.peers import COPIES
from tersor.policy.choice import predicted_speedup

_COPIES: Final = COPIES | {CEILING}


@dataclass(frozen=True, slots=True)
class ComparisonKey:
    """A place, whose rows are comparable: the same input of the same size on the same device."""

    is_file: bool
    input: str
    device: str
    original_nbytes: int
    repeat: int

    @classmethod
    def of(cls, row: ResultRow) -> ComparisonKey:
        """Return the place of a row; all tables of an input share one place despite their sizes."""
        nbytes = 0 if row.group is not None else row.original_nbytes
        return cls(row.suite == "memory", row.input, row.device, nbytes, row.repeat)

    @property
    def label(self) -> str:
        """The place in words."""
        size = f", {self.original_nbytes / 2**20:,.4g} MiB" if self.original_nbytes else ""
        copies = "" if self.repeat == 1 else f", repeated {self.repeat} times"
        return f"{self.input}{size}{copies} on {self.device}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One codec at one place, bound and thread count; several tables are combined by volume.

    Attributes:
        codec: name of the codec.
        peer: whether it belongs to another project.
        ratio: original bytes divided by encoded bytes.
        encode_gbps: encoding speed in 10**9 original bytes per second.
        decode_gbps: decoding speed in 10**9 original bytes per second.
        bits_per_value: encoded bits per value.
        promises: whether it was given a bound.
        error: the worst error as a share of the quantity to which the bound is relative; None if
            unknown.
        broken: whether it broke the bound.
        ceiling_gbps: bytes that a plain copy reads and writes, in 10**9 bytes per second; None if it
            was not measured.
    """

    codec: str
    peer: bool
    ratio: float
    encode_gbps: float
    decode_gbps: float
    bits_per_value: float
    promises: bool
    error: float | None
    broken: bool
    ceiling_gbps: float | None

    @property
    def is_copy(self) -> bool:
        """Whether it is a plain copy, which serves as a reference."""
        return self.codec in _COPIES

    @property
    def name(self) -> str:
        """The codec's name, with a mark if it broke its bound."""
        return f"{self.codec}!" if self.broken else self.codec

    @property
    def label(self) -> str:
        """The name, marked if it is a peer's, because peers may share our names."""
        return f"{self.name} (peer)" if self.peer else self.name

    @property
    def described(self) -> str:
        """The label, with a remark if it promises no bound."""
        return self.label if self.promises else f"{self.label} (no bound)"

    @property
    def kind(self) -> str:
        """Its group in a legend."""
        if not self.promises:
            return "without a bound"
        return "peer" if self.peer else "tersor"

    def speedup(self, bandwidth_gbit_s: float) -> float:
        """Return the predicted speed-up of sending over a link, including encoding and decoding."""
        return predicted_speedup(
            ratio=self.ratio,
            encode_gbps=self.encode_gbps,
            decode_gbps=self.decode_gbps,
            bandwidth_gbit_s=bandwidth_gbit_s,
        )


def comparable(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows that are comparable end to end from floats.

    Rows that start from codes are omitted: they have no memcpy although other rows do, except for logs
    of other programs, which never have one. Of repeated measurements, even by different builds, the last
    one counts. Rows of single tables are omitted if the codec has a row for all tables together.
    """
    rows = [row for row in latest(rows) if "code_nbytes" not in row.spec]
    if any(row.memcpy_s is not None for row in rows):
        rows = [row for row in rows if row.memcpy_s is not None or row.suite == "log"]
    whole = {(row.codec, row.relative_bound) for row in rows if row.group is None}
    return [r for r in rows if r.group is None or (r.codec, r.relative_bound) not in whole]


def main_threads(rows: Iterable[ResultRow]) -> int:
    """Return the thread count with the most rows; ties go to the smaller count."""
    counts = Counter(row.threads for row in rows)
    return min(counts, key=lambda threads: (-counts[threads], threads))


def bounds_of(rows: Iterable[ResultRow]) -> list[float | None]:
    """Return the relative bounds of the rows: the middle one first, then the others in order.

    If no row has a bound, the result is ``[None]``, which selects rows without one.
    """
    found = sorted({row.relative_bound for row in rows if row.relative_bound is not None})
    middle = found[len(found) // 2] if found else None
    return [middle, *(bound for bound in found if bound != middle)]


def measured(rows: Sequence[ResultRow], bound: float | None, threads: int) -> list[Measured]:
    """Return the codecs at a bound (None means without one) in row order; those without speed are omitted."""
    found: dict[tuple[str, bool], list[ResultRow]] = {}
    for row in rows:
        if row.relative_bound == bound and row.threads == threads:
            found.setdefault((row.codec, row.peer), []).append(row)
    return [one for same in found.values() if (one := _merged(same)) is not None]


def _merged(rows: Sequence[ResultRow]) -> Measured | None:
    original_nbytes = sum(row.original_nbytes for row in rows)
    timed_nbytes = sum(row.original_nbytes * row.sampled_fraction for row in rows)
    encode_s, decode_s = (sum(getattr(r, t).p50 for r in rows) for t in ("encode_s", "decode_s"))
    num_values = sum(row.num_values for row in rows)
    if not original_nbytes or not num_values or not 0 < encode_s * decode_s < float("inf"):
        return None
    first = rows[0]
    encoded_nbytes = max(1, sum(row.encoded_nbytes for row in rows))
    errors = [error for row in rows if (error := _relative_error(row)) is not None]
    return Measured(
        codec=first.codec,
        peer=first.peer,
        ratio=original_nbytes / encoded_nbytes,
        encode_gbps=timed_nbytes / encode_s / 1e9,
        decode_gbps=timed_nbytes / decode_s / 1e9,
        bits_per_value=8 * encoded_nbytes / num_values,
        promises=first.relative_bound is not None,
        error=max(errors, default=None),
        broken=any(row.bound_held is False for row in rows),
        ceiling_gbps=_ceiling(first),
    )


def _relative_error(row: ResultRow) -> float | None:
    """Return the worst error relative to the range of its slice, derived from the relative bound."""
    bound = row.relative_bound
    if bound is None or row.worst_error is None or not row.error_bound:
        return None
    return bound * row.worst_error / row.error_bound


def _ceiling(row: ResultRow) -> float | None:
    """Return a copy's throughput: the device's, or memcpy's for rows of one thread on the CPU."""
    if row.ceiling_gbps is not None:
        return row.ceiling_gbps if row.memcpy_gbps is not None else None
    return 2 * row.memcpy_gbps if row.memcpy_gbps is not None and row.threads == 1 else None
