"""The goals of the codec core on CUDA, judged from result rows.

Speeds are GB/s of raw float32 on one H200, on the look-ups at a relative bound of 0.03 where nothing
else is said: the input and bound that the peers' figures were taken at. Each is judged through the
calls that wait for sizes, those that do not (``-device``), and captured in a CUDA graph (``-graph``).

Small chunks are judged by what a launch and a copy take, eager or as a graph: three times that time
over the codec's, which is to be at least 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.core.goal import Goal, RowLookup, worst
from tersor.bench.core.rows import COPY_NBYTES, ResultRow

_INPUT: Final = "embeddings"
_BOUND: Final = 0.03

# codec or variant, then encode and decode; None where nothing is asked for
_SPEEDS: Final = (
    ("flat-absolute", 1600.0, 2800.0),
    ("flat-device-absolute", 1600.0, 2800.0),
    ("flat-graph-absolute", 1600.0, 2800.0),
    ("flat", 1200.0, None),
    ("flat-device", 1200.0, None),
    ("flat-graph", 1200.0, None),
    ("ans", 900.0, 1500.0),
    ("ans-device-absolute", 900.0, 1500.0),
    ("ans-graph-absolute", 900.0, 1500.0),
    ("ans-device", 900.0, 1500.0),
    ("ans-graph", 900.0, 1500.0),
    ("rows-ans", 600.0, 1500.0),
    ("rows-device", 600.0, 1500.0),
    ("rows-graph", 600.0, 1500.0),
)
_ROWS_RATIOS: Final = ((0.01, 40.0), (0.03, 60.0))
_MIN_SHARE: Final = 0.85
_SMALL: Final = ("flat", "ans", "rows", "half", "group8", "group4")
_MOST_TIMES: Final = 3.0


def evaluate_device_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge the goals on CUDA."""
    book = RowLookup([row for row in rows if row.suite == "kernels"])
    goals = []
    for codec, encode_gbps, decode_gbps in _SPEEDS:
        found = [r for r in book.ours(codec) if (r.input, r.relative_bound) == (_INPUT, _BOUND)]
        speeds = [(r.encode_gbps, r) for r in found]
        goals.append(worst(f"{codec} encodes at {encode_gbps:g} GB/s", encode_gbps, speeds))
        if decode_gbps is not None:
            speeds = [(r.decode_gbps, r) for r in found]
            goals.append(worst(f"{codec} decodes at {decode_gbps:g} GB/s", decode_gbps, speeds))
    return [*goals, *_rows_goals(book), *_group_goals(book), *_chunk_goals(book)]


def _rows_goals(book: RowLookup) -> list[Goal]:
    goals = []
    for bound, ratio in _ROWS_RATIOS:
        found = [
            r for r in book.ours("rows-device") if (r.input, r.relative_bound) == (_INPUT, bound)
        ]
        name = f"rows: ratio {ratio:g} at bound {bound:g}"
        goals.append(worst(name, ratio, [(r.ratio, r) for r in found]))
    return goals


def _group_goals(book: RowLookup) -> list[Goal]:
    """Judge inputs as large as the copy they are compared with; below, launches would count."""
    large = [r for r in book.ours("group4-hadamard") if r.original_nbytes >= COPY_NBYTES]
    encode = [(r.moved_gbps(r.encode_s) / r.ceiling_gbps, r) for r in large if r.ceiling_gbps]
    decode = [(r.moved_gbps(r.decode_s) / r.ceiling_gbps, r) for r in large if r.ceiling_gbps]
    name = "group4 with Hadamard {} at 0.85 of the copy ceiling, by bytes moved"
    return [
        worst(name.format("encodes"), _MIN_SHARE, encode),
        worst(name.format("decodes"), _MIN_SHARE, decode),
    ]


def _chunk_goals(book: RowLookup) -> list[Goal]:
    """Judge lists of small tensors by one launch and one copy, made in the same way."""
    goals = []
    for way, peer in (("device", "launch-copy"), ("graph", "launch-copy-graph")):
        floors = {
            (row.num_values, row.git_commit): row
            for row in book.rows
            if (row.codec, row.input) == (peer, "chunks")
        }
        for codec in _SMALL:
            pairs = [
                (row, floors[row.num_values, row.git_commit])
                for row in book.ours(f"{codec}-{way}")
                if row.input == "chunks" and (row.num_values, row.git_commit) in floors
            ]
            name = f"chunks: {codec}-{way} {{}} within {_MOST_TIMES:g} times a launch and a copy"
            encode = [(_MOST_TIMES * f.encode_s.p50 / row.encode_s.p50, row) for row, f in pairs]
            decode = [(_MOST_TIMES * f.decode_s.p50 / row.decode_s.p50, row) for row, f in pairs]
            goals += [
                worst(name.format("encodes"), 1.0, encode),
                worst(name.format("decodes"), 1.0, decode),
            ]
    return goals
