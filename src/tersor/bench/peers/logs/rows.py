"""Convert the runs in a log to result rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tersor.bench.core.rows import ResultRow
from tersor.bench.core.timing import Percentiles
from tersor.bench.peers.logs.scan import ProgramRun
from tersor.errors import SpecError

_F32_NBYTES: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFacts:
    """Facts about a log that the log does not contain and a user supplies.

    Attributes:
        where: name of the log.
        codec: codec name for the rows if the output does not name the algorithm.
        input_nbytes: size of the program's input if the output does not say it.
        value_nbytes: bytes per value of the program's input. 1 or 2 means codes, each of which
            represents a float32; ratio and speed then count the float32. None means that the log says
            it, or else 4.
        machine: a description of the machine.
        version: version of the program.
    """

    where: str
    codec: str | None = None
    input_nbytes: int | None = None
    value_nbytes: int | None = None
    machine: str | None = None
    version: str = "unknown"

    def __post_init__(self) -> None:
        """Reject invalid sizes."""
        if self.value_nbytes not in (None, 1, 2, 4, 8):
            raise SpecError(f"a value has 1, 2, 4 or 8 bytes, not {self.value_nbytes}")
        if self.input_nbytes is not None and self.input_nbytes < 1:
            raise SpecError(f"an input has at least one byte, not {self.input_nbytes}")


def rows_from_runs(runs: Sequence[ProgramRun], facts: LogFacts) -> Iterator[ResultRow]:
    """Yield one row per input and setting; repeated runs determine its percentiles.

    Raises:
        SpecError: a size or codec is unknown, a size is not a whole number of values, or it
            contradicts the log.
    """
    groups: dict[str, list[tuple[ProgramRun, int, int]]] = {}
    for run in runs:
        given, value_nbytes = _given(run, facts), _value_nbytes(run, facts)
        if given % value_nbytes:
            raise _refusal(
                run, facts, f"was given {given} bytes, which values of {value_nbytes} bytes do not "
                "fill; say how many bytes a value has with --value-nbytes",
            )  # fmt: skip
        same = [_codec(run, facts), run.input or facts.where, dict(run.spec), given, run.repeat]
        key = json.dumps(same, sort_keys=True)
        groups.setdefault(key, []).append((run, given, value_nbytes))
    for group in groups.values():
        yield _row(group, facts)


def _refusal(run: ProgramRun, facts: LogFacts, words: str) -> SpecError:
    return SpecError(f"line {run.line} of {facts.where}: the run that begins here {words}")


def _given(run: ProgramRun, facts: LogFacts) -> int:
    given = run.given_nbytes if run.given_nbytes is not None else facts.input_nbytes
    if given is None:
        raise _refusal(
            run, facts, "does not say how many bytes it was given; say so with --input-nbytes"
        )
    if facts.input_nbytes not in (None, given):
        words = f"was given {given} bytes, not {facts.input_nbytes}; leave --input-nbytes out"
        raise _refusal(run, facts, words)
    return given


def _value_nbytes(run: ProgramRun, facts: LogFacts) -> int:
    sizes = {n for n in (run.value_nbytes, facts.value_nbytes) if n is not None}
    if len(sizes) > 1:
        raise _refusal(
            run, facts, f"was given values of {run.value_nbytes} bytes, not {facts.value_nbytes}; "
            "leave --value-nbytes out",
        )  # fmt: skip
    return sizes.pop() if sizes else _F32_NBYTES


def _codec(run: ProgramRun, facts: LogFacts) -> str:
    name = run.codec or facts.codec
    if name is None:
        raise _refusal(run, facts, "does not say which algorithm it measured; name it with --codec")
    return name


def _row(group: Sequence[tuple[ProgramRun, int, int]], facts: LogFacts) -> ResultRow:
    run, given, value_nbytes = group[0]
    part = "gpu" if run.device == "cuda" else "cpu"
    num_values = given // value_nbytes
    notes = [f"from the log {facts.where}, by the program's own clock", run.note]
    spec: dict[str, Any] = dict(run.spec)
    if value_nbytes < _F32_NBYTES:
        spec["code_nbytes"] = value_nbytes
        notes.append(f"codes to bytes and back, {value_nbytes} for each float32")
    seconds = [[run.encode_seconds(n), run.decode_seconds(n)] for run, n, _ in group]
    encode_s, decode_s = (Percentiles.of(list(times)) for times in zip(*seconds, strict=True))
    return ResultRow(
        suite="log",
        codec=_codec(run, facts),
        version=facts.version,
        spec=spec,
        input=run.input or facts.where,
        device=run.device,
        num_values=num_values,
        original_nbytes=num_values * max(value_nbytes, _F32_NBYTES),
        encoded_nbytes=max(run.encoded_size(n) for run, n, _ in group),
        worst_error=None,
        error_bound=None,
        encode_s=encode_s,
        decode_s=decode_s,
        repeat=run.repeat,
        peer=True,
        note="; ".join(note for note in notes if note),
        machine={} if facts.machine is None else {part: facts.machine},
    )
