"""The speed, size and memory goals of the codec core, judged from result rows.

On the CPU every goal is a quotient of two measurements of the same run, so it can be met or missed
on any machine. Where several inputs or bounds qualify, the worst of them decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tersor.bench.core.goal import Goal, RowLookup, worst
from tersor.bench.core.rows import ResultRow
from tersor.bench.kernels.memory import FULL_FILE_NBYTES

_F32_BITS: Final = 32


def evaluate_cpu_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals of the CPU core."""
    book = RowLookup([row for row in rows if row.suite == "kernels"])
    return [
        *_flat_goals(book),
        *_rows_goals(book),
        *_entropy_goals(book),
        *_thread_goals(book),
        _memory_goal([row for row in rows if row.suite == "memory"]),
    ]


def _against(
    book: RowLookup,
    rows: list[ResultRow],
    peer: str,
    quotient: Callable[[ResultRow, ResultRow], float],
) -> list[tuple[float, ResultRow]]:
    pairs = [(row, book.counterpart(row, peer, peer=True)) for row in rows]
    return [(quotient(row, other), row) for row, other in pairs if other is not None]


def _encode_speed(row: ResultRow, other: ResultRow) -> float:
    return row.encode_gbps / other.encode_gbps


def _decode_speed(row: ResultRow, other: ResultRow) -> float:
    return row.decode_gbps / other.decode_gbps


def _ratio(row: ResultRow, other: ResultRow) -> float:
    return row.ratio / other.ratio


def _flat_goals(book: RowLookup) -> list[Goal]:
    flat = book.ours("flat")
    encode = [(r.encode_gbps / r.memcpy_gbps, r) for r in flat if r.memcpy_gbps]
    decode = [(r.decode_gbps / r.memcpy_gbps, r) for r in flat if r.memcpy_gbps]
    return [
        worst("flat encodes at 0.40 of memcpy speed", 0.40, encode),
        worst("flat decodes at 0.60 of memcpy speed", 0.60, decode),
        worst("flat encodes 20 x SZ3", 20.0, _against(book, flat, "sz3", _encode_speed)),
        worst("flat encodes 20 x zfp", 20.0, _against(book, flat, "zfp", _encode_speed)),
    ]


def _rows_goals(book: RowLookup) -> list[Goal]:
    rows = [r for r in book.ours("rows") if r.input == "embeddings" and r.relative_bound == 0.03]
    return [
        worst("rows: ratio 2.5 x SZ3's", 2.5, _against(book, rows, "sz3", _ratio)),
        worst("rows: ratio above zstd's", 1.0, _against(book, rows, "zstd", _ratio)),
        worst("rows encodes 12 x SZ3", 12.0, _against(book, rows, "sz3", _encode_speed)),
    ]


def _entropy_goals(book: RowLookup) -> list[Goal]:
    on_codes = book.ours("huffman-codes")
    name = "huffman decodes codes at 0.70 of zstd's Huffman decoder"
    goals = [worst(name, 0.70, _against(book, on_codes, "zstd-huffman", _decode_speed))]
    for codec in ("huffman", "ans"):
        values = [
            (r.ratio * r.entropy_bits / _F32_BITS, r) for r in book.ours(codec) if r.entropy_bits
        ]
        goals.append(worst(f"{codec}: ratio within 1 % of the entropy", 0.99, values))
    return goals


def _thread_goals(book: RowLookup) -> list[Goal]:
    """Compare the time of all inputs together: encode plus decode, one thread against two."""
    goals = []
    for codec in dict.fromkeys(row.codec for row in book.rows if row.threads == 2 and not row.peer):
        twos = book.ours(codec, threads=2)
        pairs = [(book.counterpart(row, codec, peer=False), row) for row in twos]
        both = [(one, two) for one, two in pairs if one is not None]
        name = f"{codec}: two threads 1.7 x one"
        if both:
            ones_s = sum(one.encode_s.p50 + one.decode_s.p50 for one, _ in both)
            twos_s = sum(two.encode_s.p50 + two.decode_s.p50 for _, two in both)
            goals.append(
                Goal(name, 1.7, ones_s / twos_s, f"total of {len(both)} inputs and bounds")
            )
    return goals or [Goal("two threads 1.7 x one", 1.7, None, "no such rows")]


def _memory_goal(rows: list[ResultRow]) -> Goal:
    """Ask for 4 GiB of array per GiB of extra memory at most: a quotient, like all others."""
    values = [
        (row.original_nbytes / max(1, row.peak_extra_nbytes), row)
        for row in rows
        # a small file is mostly the buffers that a file of any size needs
        if row.peak_extra_nbytes is not None and row.original_nbytes >= FULL_FILE_NBYTES
    ]
    return worst("4 GiB file within 1 GiB of extra memory (size over memory)", 4.0, values)
