"""Parsers for the output of other projects' programs, from users' logs and from our own runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tersor.bench.peers.logs import cusz, gpulz, nvcomp, sz3
from tersor.bench.peers.logs.scan import LogFormat, ParsedLog, ProgramRun, scan
from tersor.errors import CorruptDataError, SpecError

FORMATS: Final[Mapping[str, LogFormat]] = {
    module.FORMAT.name: module.FORMAT for module in (nvcomp, gpulz, cusz, sz3)
}


def parse_log(text: str, name: str, where: str) -> ParsedLog:
    """Parse all runs in a program's output.

    Args:
        text: the log.
        name: name of the format, one of ``FORMATS``.
        where: name of the log for messages.

    Raises:
        SpecError: there is no such format.
        CorruptDataError: no line of the text is from that program.
    """
    if name not in FORMATS:
        raise SpecError(f"log formats are {', '.join(FORMATS)}, not {name!r}")
    found = scan(text, FORMATS[name], where)
    if found.runs or found.complaints:
        return found
    others = (
        other for other in FORMATS if other != name and scan(text, FORMATS[other], where).runs
    )
    likely = next(others, None)
    way_out = "check --format and the file" if likely is None else f"--format {likely} fits it"
    raise CorruptDataError(f"{nothing_found(FORMATS[name], where)}; {way_out}")


def nothing_found(log_format: LogFormat, where: str) -> str:
    """Return the message that no line of a text is from that program, without a remedy."""
    example = next(figure.example for figure in log_format.figures if figure.required)
    return (
        f"no line of {where}, from line 1 on, is from {log_format.title}, as {example!r} would be"
    )


__all__ = ["FORMATS", "LogFormat", "ParsedLog", "ProgramRun", "nothing_found", "parse_log", "scan"]
