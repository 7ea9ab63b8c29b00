"""Find the runs of one program in a log: commands, figures, failures, and missing figures.

A log may contain only the program's output, or many runs that are each preceded by their command, as
``Executing: PROGRAM ARGUMENTS``, ``+ PROGRAM ARGUMENTS`` or ``$ PROGRAM ARGUMENTS``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from tersor.errors import CorruptDataError, SpecError

Line = tuple[int, str]

_COMMAND: Final = re.compile(r"^\s*(?:Executing:|\+|\$|>)?\s*(\S+)\s+(\S.*)$")
_COMPLETED: Final = re.compile(r"^Completed: ")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CRASH: Final = re.compile(r"^terminate called|Segmentation fault|core dumped|^Traceback ")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRun:
    """The figures that a program printed about one input; None means that the log does not say.

    Attributes:
        line: number of the log line at which the run begins.
        device: device on which the program computes.
        ratio: input bytes divided by encoded bytes.
        codec: name for rows.
        input: name of the input file.
        given_nbytes: bytes of the input.
        encoded_nbytes: bytes of the compressed output.
        value_nbytes: bytes of one value of the input.
        encode_s: seconds to compress; None if the speed is printed instead.
        decode_s: seconds to decompress; None if the speed is printed instead.
        encode_gbps: compression speed in 1e9 input bytes per second.
        decode_gbps: decompression speed in 1e9 input bytes per second.
        repeat: how often the program repeated its input.
        spec: JSON-ready options.
        note: caveats for readers who compare the run.
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
        """Return the encoded size, derived from the ratio if the size is not printed."""
        if self.encoded_nbytes is not None:
            return self.encoded_nbytes
        return max(1, round(given_nbytes / self.ratio))

    def encode_seconds(self, given_nbytes: int) -> float:
        """Return the seconds to compress ``given_nbytes``."""
        return _seconds(self.encode_s, self.encode_gbps, given_nbytes)

    def decode_seconds(self, given_nbytes: int) -> float:
        """Return the seconds to decompress to ``given_nbytes``."""
        return _seconds(self.decode_s, self.decode_gbps, given_nbytes)


def _seconds(seconds: float | None, gbps: float | None, nbytes: int) -> float:
    if seconds is not None:
        return seconds
    if gbps is None:
        raise SpecError("a run has either the time or the speed of each direction")
    return nbytes / (gbps * 1e9)


@dataclass(frozen=True, slots=True)
class Figure:
    """A kind of output line that contains a value.

    Attributes:
        name: key of the value in a record.
        pattern: regular expression for the line; its only group is the value.
        example: an example line for messages.
        required: whether a run without it is incomplete.
    """

    name: str
    pattern: str
    example: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Command:
    """A command line found in a log; empty if the log shows none."""

    program: str = ""
    arguments: Sequence[str] = ()

    def values_of(self, *options: str) -> list[str]:
        """Return the arguments after any of the options, up to the next option."""
        values: list[str] = []
        taking = False
        for argument in self.arguments:
            is_option = re.fullmatch(r"--?[A-Za-z?][\w-]*|-\d", argument) is not None
            if is_option:
                taking = argument in options
            elif taking:
                values.append(argument)
        return values

    def file_of(self, *options: str) -> str | None:
        """Return the base name of the file after one of the options, or None."""
        values = self.values_of(*options)
        return PurePath(values[0]).name if values else None


@dataclass(slots=True)
class Record:
    """The state of one run after the lines read so far."""

    where: str
    line: int
    command: Command = Command()
    values: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    failure: Line | None = None

    def number(self, name: str) -> float:
        """Return a figure that must be finite and above 0.

        Raises:
            CorruptDataError: the figure is not such a number.
        """
        text = self.values[name]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise CorruptDataError(
                f"line {self.lines[name]} of {self.where} gives {text} where a number above 0 belongs"
            )
        return value

    def whole(self, name: str) -> int:
        """Return a figure that must be a whole number above 0.

        Raises:
            CorruptDataError: the figure is anything else.
        """
        value = self.number(name)
        if not value.is_integer():
            raise CorruptDataError(
                f"line {self.lines[name]} of {self.where} gives {self.values[name]} where a whole "
                "number belongs"
            )
        return int(value)


def _never(_command: Command) -> bool:
    return False


def _as_they_are(lines: Sequence[Line]) -> Sequence[Line]:
    return lines


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFormat:
    """The output format of one program.

    Attributes:
        name: the user's name for the format.
        title: the program in words.
        program: regular expression for the name of the executable.
        figures: the lines with values. If several match a line, the first one without a value gets
            it.
        failures: regular expression for lines in which the program reports a failure.
        build: builds a run from a complete record.
        rewrite: converts other layouts of the same figures to lines that the figures match.
        continues: returns whether a command continues the run before it.
    """

    name: str
    title: str
    program: str
    figures: Sequence[Figure]
    failures: str
    build: Callable[[Record], ProgramRun]
    rewrite: Callable[[Sequence[Line]], Sequence[Line]] = _as_they_are
    continues: Callable[[Command], bool] = _never

    def command(self, text: str) -> Command | None:
        """Return the command in a line if it starts the program, else None."""
        found = _COMMAND.match(text)
        if found is None or not re.fullmatch(self.program, PurePath(found[1]).name):
            return None
        try:
            arguments = shlex.split(found[2])
        except ValueError:
            arguments = found[2].split()
        return Command(PurePath(found[1]).name, arguments)


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """The complete runs of a log, and one sentence for each run that failed or is incomplete."""

    runs: Sequence[ProgramRun]
    complaints: Sequence[str]


def lines_of(text: str) -> list[Line]:
    """Return the numbered lines without terminal colours.

    A last line without a newline is omitted, because its figure may be truncated.
    """
    # not splitlines, which also splits at characters that editors do not count as line ends
    lines = _COLOUR.sub("", text).split("\n")[:-1]
    return [(n, line.rstrip("\r")) for n, line in enumerate(lines, start=1)]


def scan(text: str, log_format: LogFormat, where: str) -> ParsedLog:
    """Parse all runs of a log; ``where`` names it in messages."""
    runs, complaints = [], []
    for record in _records(log_format.rewrite(lines_of(text)), log_format, where):
        complaint = _complaint(record, log_format)
        if complaint is None:
            try:
                runs.append(log_format.build(record))
            except CorruptDataError as error:
                complaint = str(error)
        if complaint is not None:
            complaints.append(complaint)
    return ParsedLog(runs, complaints)


def _records(lines: Sequence[Line], log_format: LogFormat, where: str) -> Iterator[Record]:
    record: Record | None = None
    for number, text in lines:
        command = log_format.command(text)
        is_end = _COMPLETED.match(text) is not None
        if command is not None and record is not None and log_format.continues(command):
            continue
        if command is not None or is_end:
            if record is not None:
                yield record
            record = None if command is None else Record(where, number, command)
            continue
        if _CRASH.search(text) or re.search(log_format.failures, text):
            record = record or Record(where, number)
            record.failure = record.failure or (number, text.strip())
            continue
        matching = [f for f in log_format.figures if re.search(f.pattern, text)]
        if not matching:
            continue
        figure = next((f for f in matching if record is None or f.name not in record.values), None)
        if record is None or figure is None:
            # a value that the record already has belongs to the next run
            if record is not None:
                yield record
            record, figure = Record(where, number), matching[0]
        found = re.search(figure.pattern, text)
        record.values[figure.name] = found[1].strip() if found else ""
        record.lines[figure.name] = number
    if record is not None:
        yield record


def _complaint(record: Record, log_format: LogFormat) -> str | None:
    begin = f"line {record.line} of {record.where}: the run that begins here"
    if record.failure is not None:
        number, text = record.failure
        return f"{begin} failed; line {number} says {text!r}"
    for figure in log_format.figures:
        if figure.required and figure.name not in record.values:
            return (
                f"{begin} has no line like {figure.example!r}: it was cut short, or this version does "
                "not print it"
            )
    return None
