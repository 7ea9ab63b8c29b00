"""The goals of the codec core on CUDA.

Speeds are GB/s of raw float32 on one H200. Unless stated otherwise, they are measured on the look-ups at a
relative bound of 0.03, the input and bound at which the peers were measured. Each goal is judged for calls
that wait for sizes, for calls that do not (``-device``), and for calls captured in a CUDA graph
(``-graph``). These are goals for kernels, so they use times of calls that the host queued ahead, which rows
of all versions have.

Small chunks are compared with the time of a launch and a copy, eager or as a graph: three times that time
divided by the codec's must be at least 1. These times are of calls queued ahead, too. ``call_goals`` has
the goals for a user's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tersor.bench.core.goal import Goal, RowLookup, worst
from tersor.bench.core.lead_times import LeadTimes
from tersor.bench.core.rows import COPY_NBYTES, ResultRow
from tersor.bench.kernels.call_goals import evaluate_call_goals
from tersor.bench.kernels.operations.goals import device_operation_goals

_INPUT: Final = "embeddings"
_BOUND: Final = 0.03

_SPEEDS: Final = {
    "flat-absolute": (1600.0, 2800.0),
    **dict.fromkeys(("flat-device-absolute", "flat-graph-absolute"), (2400.0, 3200.0)),
    "flat": (1200.0, None),
    **dict.fromkeys(("flat-device", "flat-graph"), (1600.0, None)),
    "ans": (900.0, 1500.0),
    **dict.fromkeys(
        ("ans-device-absolute", "ans-graph-absolute", "ans-device", "ans-graph"), (1200.0, 2200.0)
    ),
    "rows-ans": (600.0, 1500.0),
    **dict.fromkeys(("rows-device", "rows-graph"), (1200.0, 2300.0)),
}
"""Required encoding and decoding speeds of codecs and variants in GB/s; None means no goal."""
_ROWS_RATIOS: Final = ((0.01, 40.0), (0.03, 60.0))
_MIN_SHARE: Final = 0.85
_SMALL: Final = ("flat", "ans", "rows", "half", "group8", "group4")
_MOST_TIMES: Final = 3.0


def evaluate_device_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge all goals on CUDA, including those of calls and of fused operations."""
    lookup = RowLookup([row for row in rows if row.suite == "kernels"])
    goals = []
    for codec, targets in _SPEEDS.items():
        for direction, target in zip(("encode", "decode"), targets, strict=True):
            if target is not None:
                speeds = [
                    (row.gbps(getattr(lead, f"{direction}_s")), row)
                    for row, lead in _with_lead(_at(lookup, codec, _BOUND))
                ]
                name = f"{codec} {direction}s at {target:g} GB/s with a lead"
                goals.append(worst(name, target, speeds))
    for bound, ratio in _ROWS_RATIOS:
        ratios = [(r.ratio, r) for r in _at(lookup, "rows-device", bound)]
        goals.append(worst(f"rows: ratio {ratio:g} at bound {bound:g}", ratio, ratios))
    fused = device_operation_goals(rows)
    chunks = _chunk_goals(lookup)
    return [*evaluate_call_goals(rows), *goals, *_group_goals(lookup), *fused, *chunks]


def _with_lead(rows: Iterable[ResultRow]) -> list[tuple[ResultRow, LeadTimes]]:
    pairs = ((row, row.lead_times) for row in rows)
    return [(row, lead) for row, lead in pairs if lead is not None]


def _at(lookup: RowLookup, codec: str, bound: float) -> list[ResultRow]:
    return [r for r in lookup.ours(codec) if (r.input, r.relative_bound) == (_INPUT, bound)]


def _group_goals(lookup: RowLookup) -> list[Goal]:
    """Judge inputs at least as large as the reference copy; for smaller ones, launches would count."""
    large = [r for r in lookup.ours("group4-hadamard") if r.original_nbytes >= COPY_NBYTES]
    timed = [(r, lead, r.ceiling_gbps) for r, lead in _with_lead(large)]
    encode = [(r.moved_gbps(lead.encode_s) / most, r) for r, lead, most in timed if most]
    decode = [(r.moved_gbps(lead.decode_s) / most, r) for r, lead, most in timed if most]
    name = "group4 with Hadamard {} at 0.85 of the copy ceiling, by bytes moved"
    return [
        worst(name.format("encodes"), _MIN_SHARE, encode),
        worst(name.format("decodes"), _MIN_SHARE, decode),
    ]


def _chunk_goals(lookup: RowLookup) -> list[Goal]:
    """Judge lists of small tensors relative to one launch and one copy, run in the same mode."""
    goals = []
    for mode, peer in (("device", "launch-copy"), ("graph", "launch-copy-graph")):
        floors = {
            (row.num_values, row.git_commit): lead
            for row, lead in _with_lead(lookup.rows)
            if (row.codec, row.input) == (peer, "chunks")
        }
        for codec in _SMALL:
            found = [
                (row, lead, floors[row.num_values, row.git_commit])
                for row, lead in _with_lead(lookup.ours(f"{codec}-{mode}"))
                if row.input == "chunks" and (row.num_values, row.git_commit) in floors
            ]
            name = f"chunks: {codec}-{mode} {{}} within {_MOST_TIMES:g} times a launch and a copy"
            encode = [(_MOST_TIMES * f.encode_s.p50 / t.encode_s.p50, row) for row, t, f in found]
            decode = [(_MOST_TIMES * f.decode_s.p50 / t.decode_s.p50, row) for row, t, f in found]
            goals += [
                worst(name.format("encodes"), 1.0, encode),
                worst(name.format("decodes"), 1.0, decode),
            ]
    return goals
