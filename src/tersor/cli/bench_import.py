"""``tersor bench import-log``: converts logs of other projects' programs to result rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace
from rich.markup import escape
from rich.table import Table

from tersor.cli.bench import OutputOption, ResumeOption, Rows
from tersor.cli.options import JsonOption, option, typed_command
from tersor.cli.screen import Screen
from tersor.errors import CorruptDataError

if TYPE_CHECKING:
    from tersor.bench.core.rows import ResultRow
    from tersor.bench.peers.logs import ParsedLog


ValueOption = Annotated[
    int | None,
    option(
        "--value-nbytes",
        "1 or 2 if the program was given codes of that many bytes, each standing for a float32: "
        "ratio and speed then count the float32.",
        "N",
    ),
]
InputOption = Annotated[
    int | None,
    option("--input-nbytes", "Size of each input, where the log does not say.", "N"),
]
CodecOption = Annotated[
    str | None,
    option("--codec", "Algorithm, where the log does not say.", "NAME"),
]
PartialOption = Annotated[
    bool,
    option("--partial", "Leave out runs that failed or were cut short, with a line."),
]


def import_log(
    context: typer.Context,
    log: Annotated[str, typer.Argument(metavar="FILE", help="Output of the program, or many.")],
    format_name: Annotated[str, option("--format", "nvcomp, gpulz, cusz or sz3.", "NAME")],
    output: OutputOption = None,
    resume: ResumeOption = False,
    value_nbytes: ValueOption = None,
    input_nbytes: InputOption = None,
    codec: CodecOption = None,
    machine: Annotated[str | None, option("--machine", "What it ran on.", "WORDS")] = None,
    program_version: Annotated[
        str, option("--program-version", "Version of the program.", "WORDS")
    ] = "unknown",
    partial: PartialOption = False,
    as_json: JsonOption = False,
) -> int:
    """Turn a log of nvCOMP's benchmarks, gpulz, cuSZ's bin_hf or sz3 into result rows.

    A log may hold one run or many, each after the command that made it. Nothing is written unless the
    whole log could be read.
    """
    from tersor.bench.peers.logs import parse_log
    from tersor.bench.peers.logs.rows import LogFacts, rows_from_runs

    screen = Screen(as_json=as_json)
    name = Path(log).name
    facts = LogFacts(
        where=name, codec=codec, input_nbytes=input_nbytes, value_nbytes=value_nbytes,
        machine=machine, version=program_version,
    )  # fmt: skip
    # a log may contain stray terminal bytes; the relevant parts are ASCII
    text = Path(log).read_bytes().decode("utf-8", errors="replace")
    parsed = parse_log(text, format_name, name)
    _complain(screen, parsed, partial=partial)
    command = typed_command(context)
    rows = [replace(row, command=command) for row in rows_from_runs(parsed.runs, facts)]
    with Rows(output, resume=resume, command=command) as file:
        known = file.keys
        for row in rows:
            if row.key not in known:
                file.append(row)
    values = {"rows": [row.to_config() for row in rows], "notes": list(parsed.complaints)}
    screen.result(values, _table(rows))
    return 0


def _complain(screen: Screen, parsed: ParsedLog, *, partial: bool) -> None:
    for sentence in parsed.complaints:
        if not partial:
            raise CorruptDataError(f"{sentence}; --partial leaves such runs out")
        screen.say(f"left out: {sentence}")
    if not parsed.runs:
        raise CorruptDataError("no run of the log is complete; there is nothing to import")


def _table(rows: list[ResultRow]) -> Table:
    table = Table(title="Runs of other projects' programs, from their log")
    for name in ("input", "codec", "ratio", "encode GB/s", "decode GB/s"):
        table.add_column(name, justify="left" if name in ("input", "codec") else "right")
    for row in rows:
        table.add_row(
            escape(row.input), escape(row.codec), f"{row.ratio:.2f}", f"{row.encode_gbps:.3g}",
            f"{row.decode_gbps:.3g}",
        )  # fmt: skip
    return table
