"""Parser for nvCOMP's ``benchmark_*_chunked`` and ``benchmark_hlif``, as text, CSV or TSV.

Throughputs are in 1e9 uncompressed bytes per second, and are means over the iterations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tersor.bench.peers.logs.scan import Figure, Line, LogFormat, ProgramRun, Record

_NUMBER: Final = r"(\S+?),?"
_FIGURES: Final = (
    Figure("given", rf"^uncompressed \(B\): {_NUMBER}\s*$", "uncompressed (B): 4096"),
    Figure(
        "encoded", r"^comp_size: (\S+), compressed ratio: ",
        "comp_size: 1024, compressed ratio: 4.0000",
    ),
    Figure(
        "encode", rf"^compression throughput \(GB/s\): {_NUMBER}\s*$",
        "compression throughput (GB/s): 90.48",
    ),
    Figure(
        "decode", rf"^decompression throughput \(GB/s\): {_NUMBER}\s*$",
        "decompression throughput (GB/s): 312.81",
    ),
    Figure("repeat", r"^duplicate data: (\S+)$", "duplicate data: 1", required=False),
)  # fmt: skip
_FAILURES: Final = (
    r"(?i:CUDA (?:API )?error)|benchmark_assert|^ERROR: |did not match input"
    r"|^WARNING: Not enough memory"
)

# columns by the lower-case prefix of their name; NVIDIA misspelled the first one as "Ucompressed"
_COLUMNS: Final = {
    "ucompressed size in bytes": "uncompressed (B): {}",
    "uncompressed size in bytes": "uncompressed (B): {}",
    "compressed size in bytes": "comp_size: {}, compressed ratio: -",
    "compression throughput": "compression throughput (GB/s): {}",
    "decompression throughput": "decompression throughput (GB/s): {}",
    "duplicate data": "duplicate data: {}",
}


def _rewrite(lines: Sequence[Line]) -> list[Line]:
    """Convert table headers and their values to lines of the text layout."""
    rewritten: list[Line] = []
    columns: list[str] | None = None
    for number, text in lines:
        separator = "\t" if "\t" in text else ","
        cells = [cell.strip() for cell in text.split(separator)]
        if cells[0] == "Files" and any(_template(cell) for cell in cells):
            columns = cells
        elif columns is not None and cells[0].isdigit() and len(cells) > 1:
            named = zip(columns, cells, strict=False)
            rewritten += [
                (number, template.format(cell))
                for column, cell in named
                if (template := _template(column))
            ]
        else:
            rewritten.append((number, text))
    return rewritten


def _template(column: str) -> str | None:
    return next((t for start, t in _COLUMNS.items() if column.lower().startswith(start)), None)


def _build(record: Record) -> ProgramRun:
    given, encoded = record.whole("given"), record.whole("encoded")
    command = record.command
    repeat = record.values.get("repeat", "")
    repeat = repeat or next(iter(command.values_of("-x", "--duplicate_data")), "")
    chunk = next(iter(command.values_of("-p", "--chunk_size")), "")
    return ProgramRun(
        line=record.line,
        device="cuda",
        codec=_codec(command.program, command.arguments),
        input=command.file_of("-f", "--input_file"),
        given_nbytes=given,
        encoded_nbytes=encoded,
        ratio=given / encoded,
        encode_gbps=record.number("encode"),
        decode_gbps=record.number("decode"),
        repeat=max(1, int(repeat)) if repeat.isdigit() else 1,
        spec={"chunk_nbytes": int(chunk)} if chunk.isdigit() else {},
    )


def _codec(program: str, arguments: Sequence[str]) -> str | None:
    found = re.fullmatch(r"benchmark_(\w+)_chunked", program)
    if found is not None:
        return f"nvcomp-{found[1]}-chunked"
    has_name = bool(arguments) and not arguments[0].startswith("-")
    return f"nvcomp-{arguments[0].lower()}-hlif" if has_name else None


FORMAT: Final = LogFormat(
    name="nvcomp",
    title="nvCOMP's benchmarks",
    program=r"benchmark_(?:\w+_chunked|hlif)",
    figures=_FIGURES,
    failures=_FAILURES,
    build=_build,
    rewrite=_rewrite,
)
