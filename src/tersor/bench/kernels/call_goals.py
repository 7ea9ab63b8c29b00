"""The goals for a user's calls on CUDA: their time in a loop, and the memory that they take.

Only times of the ``"loop"`` clock count; a time of calls that the host queued ahead meets no goal here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.core.goal import Goal, RowLookup, worst
from tersor.bench.core.rows import ResultRow
from tersor.bench.kernels.device_inputs import TENSOR_BOUND

_TENSOR_SPEEDS: Final = {
    "auto-compress": (500.0, 1000.0),
    "flat-compress": (1000.0, 2000.0),
    "ans-compress": (500.0, 900.0),
    "delta-compress": (700.0, 1000.0),
    "delta3-compress": (700.0, 1000.0),
}
"""Required encoding and decoding speeds in GB/s of float32."""
_WIDE_INPUTS: Final = ("tensor", "tensor-field")
_NARROW_INPUTS: Final = ("tensor-bf16", "tensor-f16")
_NARROW_CODECS: Final = ("flat-compress", "ans-compress", "delta-compress")
_NARROW_SHARE: Final = 0.85
_LOOKUP_MICROS: Final = {
    ("rows-batch", "lookups-2048"): (150.0, 100.0),
    ("ans-batch", "lookups-2048"): (100.0, 60.0),
    ("rows-batch", "lookups-256"): (90.0, 50.0),
    ("ans-batch", "lookups-256"): (70.0, 40.0),
}
"""Longest accepted encoding and decoding times in microseconds."""
_MOST_BEYOND_PAYLOAD: Final = 0.15
_MOST_OF_LIST: Final = 1.1
_LIST_CODECS: Final = (
    "flat-device", "flat-device-absolute", "ans-device", "ans-device-absolute", "rows-device",
    "flat-batch", "ans-batch", "rows-batch",
)  # fmt: skip
_LIST_INPUTS: Final = ("embeddings", "lookups-2048", "lookups-256")
_DIRECTIONS: Final = ("encode", "decode")


def evaluate_call_goals(rows: Sequence[ResultRow]) -> list[Goal]:
    """Judge single tensors, two-byte floats against float32, lists of look-ups, and memory."""
    kernels = RowLookup([row for row in rows if row.suite == "kernels"])
    looped = RowLookup([row for row in kernels.rows if row.timed_by == "loop"])
    return [
        *_tensor_goals(looped),
        *_narrow_goals(looped),
        *_lookup_goals(looped),
        *_memory_goals(kernels),
    ]


def _tensor_goals(lookup: RowLookup) -> list[Goal]:
    goals = []
    for codec, targets in _TENSOR_SPEEDS.items():
        rows = _on(lookup, codec, _WIDE_INPUTS)
        for direction, target in zip(_DIRECTIONS, targets, strict=True):
            speeds = [(getattr(row, f"{direction}_gbps"), row) for row in rows]
            goals.append(
                worst(f"one tensor: {codec} {direction}s at {target:g} GB/s", target, speeds)
            )
    return goals


def _narrow_goals(lookup: RowLookup) -> list[Goal]:
    """Judge values per second by quotients of times, because the tensors have equally many values."""
    goals = []
    for codec in _NARROW_CODECS:
        wides = {(r.num_values, r.git_commit): r for r in _on(lookup, codec, ("tensor",))}
        pairs = [
            (row, wides[row.num_values, row.git_commit])
            for row in _on(lookup, codec, _NARROW_INPUTS)
            if (row.num_values, row.git_commit) in wides
        ]
        for direction in _DIRECTIONS:
            field = f"{direction}_s"
            values = [
                (getattr(f32, field).p50 / getattr(row, field).p50, row) for row, f32 in pairs
            ]
            name = f"bf16 and f16: {codec} {direction}s {_NARROW_SHARE:g} of float32's values per second"
            goals.append(worst(name, _NARROW_SHARE, values))
    return goals


def _lookup_goals(lookup: RowLookup) -> list[Goal]:
    goals = []
    for (codec, name), targets in _LOOKUP_MICROS.items():
        rows = [row for row in lookup.ours(codec) if row.input == name]
        for direction, target in zip(_DIRECTIONS, targets, strict=True):
            times = [(getattr(row, f"{direction}_s").p50 * 1e6, row) for row in rows]
            goal = f"{name}: {codec} {direction}s in {target:g} us"
            goals.append(worst(goal, target, times, at_most=True))
    return goals


def _memory_goals(lookup: RowLookup) -> list[Goal]:
    """Judge the device memory that encoding takes, in multiples of the input."""
    goals = []
    for codec in _TENSOR_SPEEDS:
        taken = [
            ((nbytes - row.encoded_nbytes) / row.original_nbytes, row)
            for row in _on(lookup, codec, (*_WIDE_INPUTS, *_NARROW_INPUTS))
            if (nbytes := _encoding_nbytes(row)) is not None
        ]
        name = f"one tensor: {codec} takes {_MOST_BEYOND_PAYLOAD:g} x input beyond the payload to encode"
        goals.append(worst(name, _MOST_BEYOND_PAYLOAD, taken, at_most=True))
    for codec in _LIST_CODECS:
        taken = [
            (nbytes / row.original_nbytes, row)
            for row in lookup.ours(codec)
            if row.input in _LIST_INPUTS and (nbytes := _encoding_nbytes(row)) is not None
        ]
        name = f"lists: {codec} takes {_MOST_OF_LIST:g} x input to encode"
        goals.append(worst(name, _MOST_OF_LIST, taken, at_most=True))
    return goals


def _encoding_nbytes(row: ResultRow) -> int | None:
    return None if row.workspace_nbytes is None else row.workspace_nbytes.get("encode")


def _on(lookup: RowLookup, codec: str, inputs: Sequence[str]) -> list[ResultRow]:
    """Return our rows of one codec on ``inputs``, at the bound to which the goals apply."""
    rows = lookup.ours(codec)
    return [r for r in rows if r.input in inputs and r.relative_bound == TENSOR_BOUND]
