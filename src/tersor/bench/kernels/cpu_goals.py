"""The speed, size and memory goals of the codec core on the CPU.

Every goal is a quotient of two measurements of the same run, so it applies to any machine. If several
inputs or bounds qualify, the worst of them decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.core.goal import Goal, RowLookup, worst
from tersor.bench.core.rows import ResultRow
from tersor.bench.kernels.memory import FULL_FILE_NBYTES
from tersor.bench.kernels.operations.goals import cpu_operation_goals

_F32_BITS: Final = 32


def evaluate_cpu_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals of the codec core on the CPU."""
    lookup = RowLookup([row for row in rows if row.suite == "kernels"])
    return [
        _memcpy_goal(lookup, "encode", 0.40),
        _memcpy_goal(lookup, "decode", 0.60),
        *_peer_goals(lookup),
        *(_entropy_goal(lookup, codec) for codec in ("huffman", "ans")),
        *_thread_goals(lookup),
        *cpu_operation_goals(rows),
        _memory_goal([row for row in rows if row.suite == "memory"]),
    ]


def _memcpy_goal(lookup: RowLookup, direction: str, target: float) -> Goal:
    speed = f"{direction}_gbps"
    rows = [row for row in lookup.ours("flat") if row.memcpy_gbps]
    values = [(getattr(row, speed) / (row.memcpy_gbps or 1), row) for row in rows]
    return worst(f"flat {direction}s at {target:.2f} of memcpy speed", target, values)


def _peer_goal(
    lookup: RowLookup, name: str, target: float, rows: list[ResultRow], peer: str, what: str
) -> Goal:
    """Judge the attribute ``what`` of the rows as a multiple of the peer's."""
    pairs = [(row, lookup.counterpart(row, peer, peer=True)) for row in rows]
    values = [(getattr(row, what) / getattr(other, what), row) for row, other in pairs if other]
    return worst(name, target, values)


def _peer_goals(lookup: RowLookup) -> list[Goal]:
    flat, on_codes = lookup.ours("flat"), lookup.ours("huffman-codes")
    rows = [r for r in lookup.ours("rows") if r.input == "embeddings" and r.relative_bound == 0.03]
    huffman = "huffman decodes codes at 0.70 of zstd's Huffman decoder"
    return [
        _peer_goal(lookup, "flat encodes 20 x SZ3", 20.0, flat, "sz3", "encode_gbps"),
        _peer_goal(lookup, "flat encodes 20 x zfp", 20.0, flat, "zfp", "encode_gbps"),
        _peer_goal(lookup, "rows: ratio 2.5 x SZ3's", 2.5, rows, "sz3", "ratio"),
        _peer_goal(lookup, "rows: ratio above zstd's", 1.0, rows, "zstd", "ratio"),
        _peer_goal(lookup, "rows encodes 12 x SZ3", 12.0, rows, "sz3", "encode_gbps"),
        _peer_goal(lookup, huffman, 0.70, on_codes, "zstd-huffman", "decode_gbps"),
    ]


def _entropy_goal(lookup: RowLookup, codec: str) -> Goal:
    rows = lookup.ours(codec)
    values = [(r.ratio * r.entropy_bits / _F32_BITS, r) for r in rows if r.entropy_bits]
    return worst(f"{codec}: ratio within 1 % of the entropy", 0.99, values)


def _thread_goals(lookup: RowLookup) -> list[Goal]:
    """Compare encode plus decode time, summed over all inputs, between one thread and two."""
    goals = []
    for codec in dict.fromkeys(
        row.codec for row in lookup.rows if row.threads == 2 and not row.peer
    ):
        twos = lookup.ours(codec, threads=2)
        pairs = [(lookup.counterpart(row, codec, peer=False), row) for row in twos]
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
    """Judge the file size divided by the extra memory, so that this goal is a quotient too."""
    values = [
        (row.original_nbytes / max(1, row.peak_extra_nbytes), row)
        for row in rows
        # for a small file, the memory is mostly buffers that any file needs
        if row.peak_extra_nbytes is not None and row.original_nbytes >= FULL_FILE_NBYTES
    ]
    return worst("4 GiB file within 1 GiB of extra memory (size over memory)", 4.0, values)
