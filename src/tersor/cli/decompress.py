"""``tersor decompress``: converts a ``.tsr`` file to formats that other programs read."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer

from tersor.cli.arrays.inputs import CHECKPOINT_SUFFIXES, SUFFIXES, parse_dtype
from tersor.cli.arrays.npy_header import numpy_dtype
from tersor.cli.arrays.sinks import (
    RAW,
    check_safetensors,
    member_names,
    safetensors_metadata,
    write_arrays,
)
from tersor.cli.arrays.source import TsrSource
from tersor.cli.options import (
    ForceOption,
    JsonOption,
    MaxMemoryOption,
    ThreadsOption,
    option,
    parse_size,
    use_threads,
)
from tersor.cli.screen import Screen, binary_size, printable
from tersor.cli.streams import STANDARD, check_output, open_output, standard_input
from tersor.cli.wording import counted
from tersor.container import Reader
from tersor.errors import SpecError
from tersor.memory import check_fits
from tersor.types import DTYPE_NAMES, FLOAT_DTYPES

_WHOLE_FORMS: Final = (".pt", ".safetensors")
"""Formats whose arrays must all be in memory to be written."""
_MAX_NAMED: Final = 3
"""Most keys of metadata named in messages."""
# each dtype represents every value of the dtypes it maps to
_WIDENINGS: Final = {
    torch.float32: (torch.float16, torch.bfloat16),
    torch.float64: (torch.float32, torch.float16, torch.bfloat16),
}


_FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A .tsr file, or - for standard input.")
]
_OutputOption = Annotated[
    str | None,
    option(
        "--output -o",
        "Where to write; - for standard output. Its suffix says the format: .npy (one "
        "array), .npz, .pt or .safetensors. Default: the name without .tsr.",
        "FILE",
    ),
]
_ArrayOption = Annotated[str | None, option("--array", "Write only this array.", "NAME")]
_RawOption = Annotated[bool, option("--raw", "Write the values of one array without any header.")]
_DtypeOption = Annotated[
    str | None,
    option("--dtype", "Convert floats to a wider dtype, as bf16 to f32.", "NAME"),
]


def decompress(
    file: _FileArgument,
    output: _OutputOption = None,
    array: _ArrayOption = None,
    raw: _RawOption = False,
    dtype: _DtypeOption = None,
    threads: ThreadsOption = None,
    max_memory: MaxMemoryOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> int:
    """Decompress a .tsr file.

    .npy, .npz and raw output is written chunk by chunk; .pt and .safetensors need the memory of
    all arrays.
    """
    screen = Screen(as_json=as_json)
    use_threads(threads)
    max_nbytes = parse_size(max_memory)
    with ExitStack() as stack:
        source = standard_input(stack) if file == STANDARD else file
        reader = stack.enter_context(Reader(source, max_nbytes=max_nbytes))
        names = _chosen(reader, array)
        target = output or _default_output(file, len(names), raw=raw)
        form = _form(target, len(names), raw=raw)
        wanted = parse_dtype(dtype)
        arrays = [TsrSource(reader, name, _dtype(reader, name, wanted)) for name in names]
        nbytes = sum(array.info.nbytes for array in arrays)
        members = _members(form, {array.name: array.info.dtype for array in arrays})
        if form in _WHOLE_FORMS:
            way_out = "write to .npz, which takes a chunk at a time, or "
            check_fits(nbytes, max_nbytes, f"what '{file}' holds", way_out)
        check_output(target, force=force, as_json=as_json)
        with (
            screen.compiling(),
            open_output(target) as opened,
            screen.progress("decompressing", nbytes) as advance,
        ):
            metadata = safetensors_metadata(reader)
            named = {members[array.name]: array for array in arrays}
            write_arrays(form, named, metadata, opened, advance)
    result = {
        "input": file,
        "output": target,
        "format": form.removeprefix("."),
        "nbytes": nbytes,
        "arrays": [
            {"name": array.name, "written_as": members[array.name], **array.info.to_config()}
            for array in arrays
        ],
    }
    screen.result(result)
    if form != ".safetensors":
        _say_left_out(screen, form, list(metadata))
    if not as_json:
        _say_summary(screen, result)
    return 0


def _chosen(reader: Reader, array: str | None) -> list[str]:
    if array is None:
        return reader.names
    if array not in reader.arrays:
        known = ", ".join(map(repr, reader.names[:20])) or "no arrays"
        raise SpecError(f"there is no array {array!r}; the file has {known}")
    return [array]


def _default_output(file: str, num_arrays: int, *, raw: bool) -> str:
    """Return the name without ``.tsr``, with a suffix whose format can hold the arrays."""
    if file == STANDARD:
        return STANDARD
    stem = file.removesuffix(".tsr") if file.endswith(".tsr") else file
    suffix = Path(stem).suffix.lower()
    if raw:
        return f"{stem}.raw" if suffix in SUFFIXES or stem == file else stem
    if num_arrays != 1 and suffix == ".npy":
        return f"{stem.removesuffix('.npy')}.npz"
    if suffix in SUFFIXES and stem != file:
        return stem
    return f"{stem}.npy" if num_arrays == 1 else f"{stem}.npz"


def _form(target: str, num_arrays: int, *, raw: bool) -> str:
    """Return the format to write, by the output's suffix.

    Raises:
        SpecError: the suffix is unknown, or its format cannot hold the arrays.
    """
    suffix = Path(target).suffix.lower()
    if raw:
        form = RAW
    elif target == STANDARD or not Path(target).suffix:
        form = ".npy" if num_arrays == 1 else ".npz"
    elif suffix in SUFFIXES:
        form = ".pt" if suffix in CHECKPOINT_SUFFIXES else suffix
    else:
        raise SpecError(
            f"'{target}' is none of {', '.join(SUFFIXES)}; choose one of them, or use --raw"
        )
    if form in (RAW, ".npy") and num_arrays != 1:
        raise SpecError(
            f"the file holds {num_arrays} arrays, and {form} holds one: choose it with --array "
            "NAME, or write to .npz, .pt or .safetensors"
        )
    return form


def _dtype(reader: Reader, name: str, wanted: torch.dtype | None) -> torch.dtype:
    """Return the dtype to write; raise ``SpecError`` for a conversion that could change values."""
    own = reader.arrays[name].info.dtype
    if wanted is None or wanted == own or own not in FLOAT_DTYPES:
        return own
    if own not in _WIDENINGS.get(wanted, ()):
        raise SpecError(
            f"array {name!r} is {DTYPE_NAMES[own]}: converting it to {DTYPE_NAMES[wanted]} could "
            "break the promised error; leave out --dtype, and convert afterwards"
        )
    return wanted


def _members(form: str, dtypes: dict[str, torch.dtype]) -> dict[str, str]:
    """Return the names of arrays in the output; raise, before decoding, if the format cannot hold them."""
    if form in (".npy", ".npz"):
        for dtype in dtypes.values():
            numpy_dtype(dtype)
    if form == ".safetensors":
        check_safetensors(dtypes)
    return member_names(dtypes) if form == ".npz" else {name: name for name in dtypes}


def _say_left_out(screen: Screen, form: str, keys: list[str]) -> None:
    """Print which metadata of a ``.safetensors`` file another format cannot hold."""
    if keys:
        shown = ", ".join(keys[:_MAX_NAMED]) + ", ..." * (len(keys) > _MAX_NAMED)
        screen.say(
            f"the metadata of the .safetensors file ({printable(shown)}) is left out: "
            f"{form.removeprefix('.')} has no place for it; write to .safetensors to keep it"
        )


def _say_summary(screen: Screen, result: dict[str, Any]) -> None:
    for array in result["arrays"]:
        if array["written_as"] != array["name"]:
            screen.say(f"array {array['name']!r} is written as {array['written_as']!r}")
    what = counted(len(result["arrays"]), "array")
    output = "standard output" if result["output"] == STANDARD else result["output"]
    size = binary_size(result["nbytes"])
    screen.say(f"{printable(output)}: {what}, {size}, {result['format']}")
