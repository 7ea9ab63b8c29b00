"""``tersor verify``: checks the promised error against the original."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import torch
import typer
from rich.table import Table
from rich.text import Text

from tersor.chunks import ChunkPlan
from tersor.cli.arrays import Inputs, Source, open_inputs, parse_dtype, parse_shape
from tersor.cli.arrays.inputs import SUFFIXES, stream_inputs
from tersor.cli.arrays.source import TsrSource
from tersor.cli.comparison import Comparison
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import (
    AbsOption,
    DtypeOption,
    JsonOption,
    MaxMemoryOption,
    RelOption,
    ShapeOption,
    ThreadsOption,
    parse_bound,
    parse_size,
    use_threads,
)
from tersor.cli.screen import Screen, binary_size, json_number, printable
from tersor.cli.streams import STANDARD, standard_input
from tersor.cli.wording import counted, shape_words
from tersor.container import FILE_CHUNK_VALUES, Reader
from tersor.container.header import MAGIC
from tersor.errors import SpecError
from tersor.types import DTYPE_NAMES, FLOAT_DTYPES, Bound


def verify(
    original: Annotated[
        str,
        typer.Argument(
            metavar="A", help="The original array file; or, alone, the .tsr file to check."
        ),
    ],
    decoded: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="A .tsr file, or an array file that was decoded."),
    ] = None,
    absolute: AbsOption = None,
    relative: RelOption = None,
    dtype: DtypeOption = None,
    shape: ShapeOption = None,
    threads: ThreadsOption = None,
    max_memory: MaxMemoryOption = None,
    as_json: JsonOption = False,
) -> int:
    """Recompute error, PSNR and ratio; exit with 1 when a bound is broken.

    The bound is --abs or --rel, or the one recorded in the .tsr file. It is judged in float64 (long
    double for float64 data) without slack. A .tsr file alone is read, checked against its checksums
    and decoded as a whole.
    """
    screen = Screen(as_json=as_json)
    use_threads(threads)
    bound, max_nbytes = parse_bound(absolute, relative), parse_size(max_memory)
    with ExitStack() as stack, screen.compiling():
        if decoded is None:
            if bound is not None or dtype is not None or shape is not None:
                raise SpecError("a bound is checked against the original: tersor verify A B")
            return _verify_alone(screen, original, stack, max_nbytes)
        if original == decoded == STANDARD:
            raise SpecError("only one of A and B can be standard input; name a file for the other")
        raw = (parse_dtype(dtype), parse_shape(shape))
        if dtype is not None and _describes_itself(original) and _describes_itself(decoded):
            raise SpecError("neither file is raw binary; leave out --dtype and --shape")
        first = open_inputs(original, stack, *_raw_for(original, raw), max_nbytes)
        second = _open_decoded(decoded, stack, _raw_for(decoded, raw), max_nbytes)
        return _verify_pair(screen, first, second, bound)


def _verify_alone(screen: Screen, file: str, stack: ExitStack, max_nbytes: int | None) -> int:
    if Path(file).suffix.lower() in SUFFIXES:
        raise SpecError(f"name what to compare '{file}' with: tersor verify A B")
    source = standard_input(stack) if file == STANDARD else file
    reader = stack.enter_context(Reader(source, max_nbytes=max_nbytes))
    nbytes = sum(entry.info.nbytes for entry in reader.arrays.values())
    num_chunks = 0
    with screen.progress("verifying", nbytes) as advance:
        for name in reader.names:
            for x in reader.iter_chunks(name):
                advance(x.nbytes)
                num_chunks += 1
    num_arrays = len(reader.names)
    screen.result({"file": file, "num_arrays": num_arrays, "num_chunks": num_chunks, "sound": True})
    if not screen.as_json:
        screen.say(
            f"{printable(file)}: sound; {counted(num_arrays, 'array')}, "
            f"{counted(num_chunks, 'chunk')}, "
            f"{binary_size(nbytes)} decoded"
        )
    return 0


def _verify_pair(screen: Screen, first: Inputs, second: Inputs, bound: Bound | None) -> int:
    verdicts = []
    with screen.progress("verifying", first.nbytes) as advance:
        for x, y in _pairs(first, second):
            verdicts.append(_judge(x, y, bound))
            advance(x.info.nbytes)
    broken = [verdict for verdict in verdicts if verdict["broken"]]
    screen.result({"holds": not broken, "arrays": verdicts}, _table(verdicts))
    for verdict in broken:
        screen.say(f"array {verdict['name']!r}: {verdict['broken']}")
    return CHECK_FAILED if broken else 0


def _describes_itself(name: str) -> bool:
    return name != STANDARD and (Path(name).suffix.lower() in SUFFIXES or _is_tsr(name))


def _is_tsr(name: str) -> bool:
    with Path(name).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


_Raw = tuple[torch.dtype | None, tuple[int, ...] | None]


def _raw_for(name: str, raw: _Raw) -> _Raw:
    """Return ``raw`` for a raw binary file, and no dtype or shape for other files."""
    return (None, None) if _describes_itself(name) else raw


def _open_decoded(name: str, stack: ExitStack, raw: _Raw, max_nbytes: int | None) -> Inputs:
    source: str | BinaryIO = name
    if name == STANDARD:
        source = standard_input(stack)
        start = source.tell()
        ours = source.read(len(MAGIC)) == MAGIC
        source.seek(start)
        if not ours:
            return stream_inputs(source, *raw)
    elif not _is_tsr(name):
        return open_inputs(name, stack, *raw, max_nbytes)
    reader = stack.enter_context(Reader(source, max_nbytes=max_nbytes))
    return Inputs([TsrSource(reader, array) for array in reader.names], several=True)


def _pairs(first: Inputs, second: Inputs) -> list[tuple[Source, Source | None]]:
    """Match arrays by name; two single arrays match regardless of their names."""
    if len(first.sources) == len(second.sources) == 1:
        return [(first.sources[0], second.sources[0])]
    decoded = {source.name: source for source in second.sources}
    return [(source, decoded.get(source.name)) for source in first.sources]


def _judge(x: Source, y: Source | None, bound: Bound | None) -> dict[str, Any]:
    """Compare a pair of arrays; return the verdict for ``--json``."""
    found, entry = Comparison(), y.entry if isinstance(y, TsrSource) else None
    error_bound = None if entry is None else entry.error_bound
    if entry is not None and entry.codec.guarantee == "bit-exact":
        error_bound = 0.0
    broken = _difference(x, y)
    if y is not None and not broken:
        plan = ChunkPlan(x.info.shape, FILE_CHUNK_VALUES) if entry is None else entry.plan
        for x_chunk, y_chunk in zip(x.chunks(plan), y.chunks(plan), strict=True):
            found.add(x_chunk, y_chunk)
        if bound is not None:
            # other dtypes are stored exactly, and an array without finite values has no range
            bounded = x.info.dtype in FLOAT_DTYPES and found.low <= found.high
            error_bound = bound.resolve(found.low, found.high) if bounded else 0.0
        broken = _broken(found, error_bound)
    return {
        "name": x.name,
        "num_values": found.num_values,
        "max_error": json_number(float(found.max_error)),
        "error_bound": error_bound,
        "psnr_db": found.psnr_db,
        "ratio": None if entry is None else entry.ratio,
        "num_nonfinite_mismatches": found.num_mismatches,
        "holds": None if error_bound is None and not broken else not broken,
        "broken": broken,
    }


def _broken(found: Comparison, error_bound: float | None) -> str:
    """Return how the promise is broken; empty if it holds or there is none."""
    if error_bound is None or found.holds(error_bound):
        return ""
    if found.num_mismatches:
        return f"{found.num_mismatches} NaN or infinities were made, lost or changed"
    return f"error {float(found.max_error):.17g} is above the bound {error_bound:.17g}"


def _difference(x: Source, y: Source | None) -> str:
    """Return why the two cannot be the same array; empty if they can."""
    if y is None:
        return "the decoded file has no array of this name"
    if x.info.shape != y.info.shape:
        return f"shape {shape_words(y.info.shape)} is not {shape_words(x.info.shape)}"
    both_floats = x.info.dtype in FLOAT_DTYPES and y.info.dtype in FLOAT_DTYPES
    if x.info.dtype != y.info.dtype and not both_floats:
        return f"dtype {DTYPE_NAMES[y.info.dtype]} is not {DTYPE_NAMES[x.info.dtype]}"
    return ""


def _table(verdicts: list[dict[str, Any]]) -> Table:
    words = {True: "holds", False: "[red]broken[/red]", None: "no bound promised"}
    table = Table()
    table.add_column("array", overflow="fold")
    for name in ("values", "max error", "bound", "error / bound", "PSNR", "ratio", "NaN/inf lost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for verdict in verdicts:
        bound, psnr, ratio = verdict["error_bound"], verdict["psnr_db"], verdict["ratio"]
        # None stands for infinity, which JSON lacks
        error = math.inf if verdict["max_error"] is None else verdict["max_error"]
        table.add_row(
            Text(printable(verdict["name"])),
            str(verdict["num_values"]),
            f"{error:.6g}",
            "" if bound is None else f"{bound:.6g}",
            f"{error / bound:.4f}" if bound else "",
            "" if psnr is None else f"{psnr:.1f} dB",
            "" if ratio is None else f"{ratio:.2f}",
            str(verdict["num_nonfinite_mismatches"]),
            words[verdict["holds"]],
        )
    return table
