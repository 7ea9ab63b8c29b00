"""``tersor inspect``: shows the index of a ``.tsr`` file without decoding anything."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tersor.cli.options import JsonOption, MaxMemoryOption, option, parse_size
from tersor.cli.screen import Screen, binary_size, printable
from tersor.cli.streams import STANDARD, standard_input
from tersor.cli.wording import bound_words, codec_words, shape_words
from tersor.codecs import codec_ids
from tersor.container import AbsentCodec, ArrayEntry, Reader
from tersor.container.header import FORMAT_VERSION


def inspect(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .tsr file, or - for standard input.")
    ],
    chunks: Annotated[
        bool, option("--chunks", "Show the place and the compressed size of each chunk.")
    ] = False,
    max_memory: MaxMemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show names, shapes, codecs, bounds and ratios of a .tsr file.

    Only the header is read; 'tersor verify FILE' reads and checks the rest. Codecs need not be
    installed.
    """
    screen = Screen(as_json=as_json)
    with ExitStack() as stack:
        source = standard_input(stack) if file == STANDARD else file
        reader = stack.enter_context(
            Reader(source, max_nbytes=parse_size(max_memory), allow_absent=True)
        )
        file_nbytes = Path(source).stat().st_size if isinstance(source, str) else source.seek(0, 2)
        entries = list(reader.arrays.values())
    original_nbytes = sum(entry.info.nbytes for entry in entries)
    values = {
        "file": file,
        "format_version": FORMAT_VERSION,
        "original_nbytes": original_nbytes,
        "encoded_nbytes": file_nbytes,
        "ratio": original_nbytes / file_nbytes,
        "arrays": [_values(entry, chunks=chunks) for entry in entries],
    }
    title = (
        f"{printable(file)}: {binary_size(file_nbytes)} for {binary_size(original_nbytes)}, "
        f"ratio {values['ratio']:.2f}"
    )
    shown: list[RenderableType] = [_table(entries, title)]
    shown += [Text(line) for line in dict.fromkeys(map(_problem, entries)) if line]
    shown += [Text(printable(f"{entry.name}: {entry.reason}")) for entry in entries if entry.reason]
    shown += [
        Text(printable(f"{entry.name}: {key} = {text}"))
        for entry in entries
        for key, text in entry.metadata.items()
    ]
    if chunks:
        shown += [_chunk_table(entry) for entry in entries]
    screen.result(values, *shown)
    return 0


def _values(entry: ArrayEntry, *, chunks: bool) -> dict[str, Any]:
    values = {
        "name": entry.name,
        **entry.info.to_config(),
        "codec": entry.stored_codec.to_config(),
        "guarantee": entry.stored_codec.guarantee,
        "problem": _problem(entry),
        "error_bound": entry.error_bound,
        "original_nbytes": entry.info.nbytes,
        "encoded_nbytes": entry.nbytes,
        "ratio": entry.ratio,
        "chunk_values": entry.chunk_values,
        "num_chunks": len(entry.sections),
        "reason": entry.reason,
        "metadata": dict(entry.metadata),
    }
    if chunks:
        values["chunks"] = [
            {
                "start": chunk.start,
                "stop": chunk.stop,
                "shape": list(chunk.shape),
                "offset": section.offset,
                "encoded_nbytes": section.nbytes,
                "checksum": f"{section.checksum:016x}",
            }
            for chunk, section in zip(entry.plan, entry.sections, strict=True)
        ]
    return values


def _problem(entry: ArrayEntry) -> str:
    """Return why an array cannot be read here; empty if it can."""
    codec = entry.stored_codec
    if not isinstance(codec, AbsentCodec):
        return ""
    codec_id = codec.config["id"]
    if codec_id in codec_ids():
        return printable(str(codec.error))
    return printable(f"codec {codec_id!r} is not installed; install the package that brings it")


def _table(entries: list[ArrayEntry], title: str) -> Table:
    table = Table(title=Text(title))
    for name in ("array", "shape", "dtype", "codec", "promised error"):
        table.add_column(name, overflow="fold")
    for name in ("size", "ratio", "chunks"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        config, guarantee = entry.stored_codec.to_config(), entry.stored_codec.guarantee
        table.add_row(
            Text(printable(entry.name)),
            shape_words(entry.info.shape),
            entry.info.to_config()["dtype"],
            Text(printable(codec_words(config))),
            bound_words(config, guarantee or "not known", entry.error_bound),
            binary_size(entry.nbytes),
            f"{entry.ratio:.2f}",
            str(len(entry.sections)),
        )
    return table


def _chunk_table(entry: ArrayEntry) -> Table:
    table = Table(title=Text(f"chunks of {printable(entry.name)}"))
    for name in ("chunk", "values", "shape", "offset", "bytes", "ratio", "checksum"):
        table.add_column(name, justify="right", no_wrap=True)
    itemsize = entry.info.dtype.itemsize
    for index, (chunk, section) in enumerate(zip(entry.plan, entry.sections, strict=True)):
        nbytes = (chunk.stop - chunk.start) * itemsize
        table.add_row(
            str(index),
            f"{chunk.start} to {chunk.stop}",
            shape_words(chunk.shape),
            str(section.offset),
            str(section.nbytes),
            f"{nbytes / max(1, section.nbytes):.2f}",
            f"{section.checksum:016x}",
        )
    return table
