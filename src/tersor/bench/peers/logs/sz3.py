"""Parser for the command ``sz3``, which prints the ratio and the time of each direction, but no size.

Sizes follow from the dimensions on the command line. The largest error, printed with ``-a``, has only two
digits. That is too few to judge a bound, so it becomes a note.
"""

from __future__ import annotations

import math
from typing import Any, Final

from tersor.bench.peers.logs.scan import Command, Figure, LogFormat, ProgramRun, Record

_RATIO: Final = r"^compression ratio = (\S+)\s*$"
_FIGURES: Final = (
    Figure("ratio", _RATIO, "compression ratio = 3.32"),
    Figure("encode", r"^compression time = (\S+)\s*$", "compression time = 0.001664"),
    Figure(
        "decode", r"^decompression time = (\S+) seconds", "decompression time = 0.000920 seconds."
    ),
    # printed again, with more digits, when decompressing
    Figure("exact_ratio", _RATIO, "compression ratio = 3.317712", False),
    Figure("worst", r"^Max absolute error = (\S+)\s*$", "Max absolute error = 0.01", False),
)
_BOUND_KINDS: Final = {"ABS": "absolute", "REL": "relative", "VR_REL": "relative"}


def _build(record: Record) -> ProgramRun:
    command = record.command
    ratio = record.number("exact_ratio" if "exact_ratio" in record.values else "ratio")
    value_nbytes = _value_nbytes(command)
    worst = record.values.get("worst")
    return ProgramRun(
        line=record.line,
        device="cpu",
        codec="sz3-cli",
        input=command.file_of("-i"),
        given_nbytes=_given_nbytes(command, value_nbytes),
        value_nbytes=value_nbytes,
        ratio=ratio,
        encode_s=record.number("encode"),
        decode_s=record.number("decode"),
        spec=_spec(command),
        note="" if worst is None else f"largest error {worst} as printed, with two digits",
    )


def _value_nbytes(command: Command) -> int:
    is_wide = "-d" in command.arguments or command.values_of("-I")[:1] == ["64"]
    return 8 if is_wide else 4


def _given_nbytes(command: Command, value_nbytes: int) -> int | None:
    """Return the size that follows from the command's dimensions, or None if it has none."""
    for count in range(1, 5):
        sizes = command.values_of(f"-{count}")
        if len(sizes) == count and all(size.isdigit() for size in sizes):
            return math.prod(int(size) for size in sizes) * value_nbytes
    return None


def _spec(command: Command) -> dict[str, Any]:
    mode = command.values_of("-M")
    kind = _BOUND_KINDS.get(mode[0]) if mode else None
    text = mode[1] if len(mode) > 1 else next(iter(command.values_of("-A", "-R")), "")
    try:
        bound = float(text)
    except ValueError:
        return {}
    # a bound of 0 means lossless compression, which does not compare with other bounds
    return {"bound": {kind: bound}} if kind is not None and 0 < bound < math.inf else {}


def _decompresses(command: Command) -> bool:
    """Return True if a command only decompresses what the run before it compressed."""
    arguments = set(command.arguments)
    return "-i" not in arguments or not arguments & {"-M", "-c"}


FORMAT: Final = LogFormat(
    name="sz3",
    title="the command sz3",
    program=r"sz3?",
    figures=_FIGURES,
    failures=r"^Error[:,] ",
    build=_build,
    continues=_decompresses,
)
