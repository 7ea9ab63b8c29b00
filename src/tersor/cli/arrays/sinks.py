"""Writing of decoded arrays: ``.npy``, ``.npz`` and raw chunk by chunk, checkpoints as a whole."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Mapping
from typing import BinaryIO, Final, cast

import torch

from tersor.cli.arrays.npy_header import write_npy_header
from tersor.cli.arrays.source import Advance, TsrSource, watched
from tersor.cli.arrays.state_dicts import METADATA_PREFIX, load_safetensors
from tersor.cli.streams import Output
from tersor.container import Reader
from tersor.errors import SpecError
from tersor.raw_bytes import as_bytes
from tersor.types import DTYPE_NAMES

RAW: Final = "raw"
"""Format without a header."""
_NPY_SUFFIX: Final = ".npy"
_MAX_MEMBER_NBYTES: Final = 2**16 - 1
"""Longest member name: an archive stores its length in 16 bits."""
_SAFETENSORS_METADATA: Final = "__metadata__"


def write_arrays(
    form: str,
    arrays: Mapping[str, TsrSource],
    metadata: dict[str, str],
    output: Output,
    advance: Advance,
) -> None:
    """Write arrays, keyed by their names in the output, in a format that can hold them."""
    stream = output.stream
    if form == ".npz":
        _write_npz(arrays, stream, advance)
    elif form == ".pt":
        _write_pt(arrays, stream, advance)
    elif form == ".safetensors":
        write_safetensors(arrays, metadata, output, advance)
    else:
        (array,) = arrays.values()
        (_write_raw if form == RAW else _write_npy)(array, stream, advance)


def _whole(array: TsrSource, advance: Advance) -> torch.Tensor:
    """Decode a whole array into memory."""
    values, plan = torch.empty(array.info.shape, dtype=array.info.dtype), array.entry.plan
    flat = values.view(-1)
    for chunk, x in zip(plan, watched(array.chunks(plan), advance), strict=True):
        flat[chunk.start : chunk.stop] = x
    return values


def _write_raw(array: TsrSource, stream: BinaryIO, advance: Advance) -> None:
    """Write only the values, little-endian and C-ordered."""
    chunks = watched(array.chunks(array.entry.plan), advance)
    stream.writelines(as_bytes(x).numpy().data for x in chunks)


def _write_npy(array: TsrSource, stream: BinaryIO, advance: Advance) -> None:
    """Write a ``.npy`` file; raise ``SpecError`` if numpy lacks the dtype."""
    write_npy_header(stream, array.info)
    _write_raw(array, stream, advance)


def _write_npz(arrays: Mapping[str, TsrSource], stream: BinaryIO, advance: Advance) -> None:
    """Write an uncompressed ``.npz`` archive; the names must come from ``member_names``."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            # an explicit ZipInfo has a fixed date, so the same arrays give the same bytes
            member = zipfile.ZipInfo(name + _NPY_SUFFIX)
            with archive.open(member, "w", force_zip64=True) as entry:
                _write_npy(array, cast("BinaryIO", entry), advance)


def _write_pt(arrays: Mapping[str, TsrSource], stream: BinaryIO, advance: Advance) -> None:
    """Write a state dict that ``torch.load`` can read with ``weights_only=True``."""
    tensors = {name: _whole(array, advance) for name, array in arrays.items()}
    try:
        torch.save(tensors, stream)
    except RuntimeError as error:
        # after a failed write torch still completes its archive, which fails again and hides the cause
        cause = error.__context__
        raise (cause if isinstance(cause, OSError) else error) from None


def check_safetensors(arrays: Mapping[str, torch.dtype]) -> None:
    """Check that a ``.safetensors`` file can hold the given names and dtypes.

    Raises:
        SpecError: it cannot.
        BackendUnavailableError: the package safetensors is not installed.
    """
    safetensors = load_safetensors()
    if _SAFETENSORS_METADATA in arrays:
        raise SpecError(
            f".safetensors keeps the name {_SAFETENSORS_METADATA!r} for itself; write to .npz or "
            ".pt, or choose other arrays with --array NAME"
        )
    for dtype in set(arrays.values()):
        try:
            safetensors.torch.save({"x": torch.zeros(0, dtype=dtype)})
        # the supported dtypes depend on its version
        except (KeyError, safetensors.SafetensorError) as error:
            name = DTYPE_NAMES[dtype]
            raise SpecError(f".safetensors has no dtype for {name}; write to .pt") from error


def safetensors_metadata(reader: Reader) -> dict[str, str]:
    """Return the metadata of the ``.safetensors`` file that was compressed; empty if there is none."""
    first = next(iter(reader.arrays.values()), None)
    return {
        key.removeprefix(METADATA_PREFIX): text
        for key, text in (first.metadata.items() if first is not None else ())
        if key.startswith(METADATA_PREFIX)
    }


def write_safetensors(
    arrays: Mapping[str, TsrSource], metadata: dict[str, str], output: Output, advance: Advance
) -> None:
    """Write a ``.safetensors`` file; the arrays must have passed ``check_safetensors``."""
    safetensors = load_safetensors()
    tensors = {name: _whole(array, advance) for name, array in arrays.items()}
    if output.path is None:
        output.stream.write(safetensors.torch.save(tensors, metadata or None))
    else:
        # directly to the temporary file, which avoids another copy of all bytes in memory
        try:
            safetensors.torch.save_file(tensors, output.path, metadata or None)
        except safetensors.SafetensorError as error:
            raise _system_error(error) from error


def _system_error(error: Exception) -> Exception:
    """Return the ``OSError`` that safetensors reports only in its message; else ``error`` itself."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return error if number is None else OSError(int(number[1]), os.strerror(int(number[1])))


def member_names(names: Collection[str]) -> dict[str, str]:
    """Return a safe and unique archive member name for every array name.

    Names come from untrusted files, and some tools unpack archives without checks. Parent folders, absolute
    paths and control characters are therefore removed.

    Raises:
        SpecError: a name is too long for an archive.

    Example:
        >>> member_names(["layer/weight", "../x", "/x", ""])
        {'layer/weight': 'layer/weight', '../x': 'x', '/x': 'x_2', '': 'array'}
    """
    members: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        parts = [part for part in re.split(r"[/\\]", name) if part.strip(". ")]
        clean = "".join(c if c.isprintable() else "_" for c in "/".join(parts)) or "array"
        member, count = clean, 1
        while member in taken:
            count += 1
            member = f"{clean}_{count}"
        _check_member_length(member)
        taken.add(member)
        members[name] = member
    return members


def _check_member_length(member: str) -> None:
    nbytes = len((member + _NPY_SUFFIX).encode())
    if nbytes > _MAX_MEMBER_NBYTES:
        raise SpecError(
            f"the name {member[:40]!r}... would take {nbytes} bytes in a .npz archive, which has "
            f"{_MAX_MEMBER_NBYTES} for it; write to .pt or .safetensors"
        )
