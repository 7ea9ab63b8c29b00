"""Totals of look-up rows per encoder, and the best encoder per table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tersor.bench.core.rows import LookupRow, ResultRow
from tersor.bench.peers.mx4 import Mx4
from tersor.policy import predicted_speedup

PLAIN_LZ: Final = ("lz4", "nvcomp-lz4")
PLAIN_HUFFMAN: Final = ("huffman", "zstd-huffman")
"""LZ and Huffman coding of quantized codes, ours and others', without row deduplication."""
OURS: Final = ("rows", "rows-ans", "rows-device")


def label(row: ResultRow) -> str:
    """Return the name of an encoder, marked if it is a peer, because peers may share our names."""
    return f"{row.codec} (peer)" if row.peer else row.codec


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural.

    Example:
        >>> counted(1, "table"), counted(26, "table")
        ('1 table', '26 tables')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(slots=True)
class Sum:
    """Bytes and seconds of one encoder, or of a choice of encoders, over several tables.

    Attributes:
        num_tables: number of tables.
        original_nbytes: bytes as float32.
        encoded_nbytes: encoded bytes.
        encode_s: median seconds to encode all slices, summed over the tables.
        decode_s: median seconds to decode all slices, summed over the tables.
        error_share: the largest ratio of worst error to bound.
        is_end_to_end: whether encoding starts from float32, not from codes.
        has_speed: whether its times are known and meaningful. MX4's are not, because they are those of
            plain torch instead of a kernel.
        is_sampled: whether any time is extrapolated from a sample of the slices.
        has_broken: whether a promised bound was broken.
    """

    num_tables: int = 0
    original_nbytes: int = 0
    encoded_nbytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    error_share: float = 0.0
    is_end_to_end: bool = True
    has_speed: bool = True
    is_sampled: bool = False
    has_broken: bool = False

    def add(self, row: LookupRow, timed: LookupRow | None) -> None:
        """Add one table, at the speed of ``timed``.

        ``timed`` is the same row, the row of all tables together, or None if the speed is unknown.
        """
        self.num_tables += 1
        self.original_nbytes += row.original_nbytes
        self.encoded_nbytes += row.encoded_nbytes
        if timed is not None:
            share = row.original_nbytes / max(1.0, timed.original_nbytes * timed.sampled_fraction)
            self.encode_s += timed.encode_s.p50 * share
            self.decode_s += timed.decode_s.p50 * share
            self.is_sampled = self.is_sampled or timed.sampled_fraction < 1
        self.error_share = max(self.error_share, row.lookups.error_share)
        self.is_end_to_end = self.is_end_to_end and row.memcpy_s is not None
        self.has_speed = self.has_speed and timed is not None and row.codec != Mx4.name
        self.has_broken = self.has_broken or row.bound_held is False

    @property
    def ratio(self) -> float:
        """All original bytes divided by all encoded bytes: a volume ratio, not a mean of ratios."""
        return self.original_nbytes / max(1, self.encoded_nbytes)

    @property
    def encode_gbps(self) -> float:
        """Encoding speed in 1e9 original bytes per second."""
        return self.original_nbytes / max(self.encode_s, 1e-12) / 1e9

    @property
    def decode_gbps(self) -> float:
        """Decoding speed in 1e9 original bytes per second."""
        return self.original_nbytes / max(self.decode_s, 1e-12) / 1e9

    def speedup(self, bandwidth_gbit_s: float) -> float:
        """Return the predicted speed-up of sending, relative to uncompressed float32."""
        return predicted_speedup(
            ratio=self.ratio,
            encode_gbps=self.encode_gbps,
            decode_gbps=self.decode_gbps,
            bandwidth_gbit_s=bandwidth_gbit_s,
        )

    @property
    def pays_up_to_gbit_s(self) -> float:
        """Bandwidth in Gbit/s above which uncompressed float32 is faster; 0 if it always is."""
        seconds_per_gb = 1 / self.encode_gbps + 1 / self.decode_gbps
        return 8 * max(0.0, 1 - 1 / self.ratio) / seconds_per_gb

    @property
    def is_predictable(self) -> bool:
        """Whether a speed-up can be predicted: encoding starts from float32 and its speed is known."""
        return self.is_end_to_end and self.has_speed

    @property
    def is_usable(self) -> bool:
        """Whether an exchange could use it: its speed-up is predictable and all errors are in bounds."""
        return self.is_predictable and self.error_share <= 1


@dataclass(slots=True)
class DumpResults:
    """All rows of one dump, cut, setting and device.

    Attributes:
        input: name of the dump.
        device: device of the measurements.
        num_ranks: destinations.
        repeat: how often rows were repeated.
        setting: the non-default settings in words.
        tables: rows by table and then by the name of the encoder.
        steps: rows of all tables of a step in one call, by the name of the encoder.
    """

    input: str
    device: str
    num_ranks: int
    repeat: int
    setting: str
    tables: dict[int, dict[str, LookupRow]] = field(default_factory=dict)
    steps: dict[str, LookupRow] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The dump, the cut and the setting, for a title."""
        setting = f", {self.setting}" if self.setting else ""
        copies = "" if self.repeat == 1 else f", rows REPEATED {self.repeat} times"
        some = f", {self.tables_words}" if len(self.tables) < self.num_tables else ""
        ranks = counted(self.num_ranks, "rank")
        return f"{self.input}, {ranks}, {self.device}{setting}{copies}{some}"

    @property
    def num_tables(self) -> int:
        """Tables of the dump, according to the rows; an interrupted run has measured only some."""
        counts = (row.lookups.num_tables for rows in self.tables.values() for row in rows.values())
        return max(len(self.tables), *counts)

    @property
    def tables_words(self) -> str:
        """The number of measured tables in words, and of all tables if some are missing."""
        some = f"{len(self.tables)} of " if len(self.tables) < self.num_tables else ""
        return f"{some}{counted(self.num_tables, 'table')}"

    @property
    def encoders(self) -> list[str]:
        """Names of the encoders, in the order of the rows."""
        return list(dict.fromkeys(name for rows in self.tables.values() for name in rows))

    def sum_of(self, rows: Iterable[LookupRow]) -> Sum:
        """Add up rows of different tables."""
        total = Sum()
        for row in rows:
            total.add(row, self._timed(row))
        return total

    def _timed(self, row: LookupRow) -> LookupRow | None:
        """Return the row whose speed applies to a table's row, if there is one.

        If whole steps were measured in one call, that is the step of the same encoder, because a single
        table on a GPU is mostly launch overhead. Encoders without a step then have no speed.
        """
        return self.steps.get(label(row)) if self.steps else row

    def overall(self, encoder: str) -> Sum:
        """Add up one encoder over the tables on which it was measured."""
        return self.sum_of(rows[encoder] for rows in self.tables.values() if encoder in rows)

    def best(
        self, table: int, bandwidth_gbit_s: float, *, ours_only: bool = False
    ) -> LookupRow | None:
        """Return the row with the largest predicted speed-up on a table.

        The result is None if uncompressed float32 would be the fastest.
        """
        usable = [
            (self.sum_of([row]).speedup(bandwidth_gbit_s), row)
            for row in self.tables[table].values()
            if self.sum_of([row]).is_usable and not (ours_only and row.peer)
        ]
        speedup, row = max(usable, key=lambda pair: pair[0], default=(0.0, None))
        return row if speedup > 1 else None

    def chosen(self, bandwidth_gbit_s: float) -> Sum:
        """Add up our best encoder per table; tables without one are sent as float32 at no coding cost."""
        total = Sum()
        for table, rows in self.tables.items():
            row = self.best(table, bandwidth_gbit_s, ours_only=True)
            if row is not None:
                total.add(row, self._timed(row))
            else:
                nbytes = next(iter(rows.values())).original_nbytes
                total.num_tables += 1
                total.original_nbytes += nbytes
                total.encoded_nbytes += nbytes
        return total

    def ratios(self, table: int) -> tuple[float | None, float | None, float | None]:
        """Return the best ratios of our rows codec, of plain LZ and of plain Huffman.

        A kind that was not measured is None.
        """

        def best(is_kind: Callable[[ResultRow], bool]) -> float | None:
            found = (row.ratio for row in self.tables[table].values() if is_kind(row))
            return max(found, default=None)

        return (
            best(lambda row: row.codec in OURS and not row.peer),
            best(lambda row: row.codec in PLAIN_LZ),
            best(lambda row: row.codec in PLAIN_HUFFMAN),
        )

    def gain(self, table: int) -> float | None:
        """Return our rows codec's ratio divided by the better of plain LZ's and plain Huffman's.

        The result is None if one of the three was not measured.
        """
        ours, lz, huffman = self.ratios(table)
        return None if ours is None or lz is None or huffman is None else ours / max(lz, huffman)


def places(rows: Iterable[ResultRow]) -> list[DumpResults]:
    """Group look-up rows by dump, cut, setting and device; of repeated measurements, the last counts.

    Other rows are omitted, and so are groups in which no table was measured.
    """
    found: dict[tuple[str, str, int, int, str], DumpResults] = {}
    for row in rows:
        if isinstance(row, LookupRow):
            facts = row.lookups
            key = (row.input, row.device, facts.num_ranks, row.repeat, facts.setting)
            place = found.setdefault(key, DumpResults(*key))
            if facts.table is None:
                place.steps[label(row)] = row
            else:
                place.tables.setdefault(facts.table, {})[label(row)] = row
    for place in found.values():
        place.tables = dict(sorted(place.tables.items()))
    return [place for place in found.values() if place.tables]
