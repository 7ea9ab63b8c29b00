"""Opening of an input by name: detects its format and lists its arrays."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import torch

from tersor.cli.arrays.mapped import npy_source, raw_source
from tersor.cli.arrays.source import Source
from tersor.cli.arrays.state_dicts import METADATA_PREFIX, pt_sources, safetensors_sources
from tersor.cli.arrays.zipped import npz_sources
from tersor.cli.streams import STANDARD, standard_input
from tersor.errors import CorruptDataError, SpecError
from tersor.types import DTYPES, MAX_DIMS

CHECKPOINT_SUFFIXES: Final = (".pt", ".pth")
SUFFIXES: Final = (".npy", ".npz", *CHECKPOINT_SUFFIXES, ".safetensors")
"""Self-describing formats."""

_STANDARD_NAME: Final = "array"
_NPY_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = b"PK"
_DTYPE_ALIASES: Final = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arrays of one input.

    Attributes:
        sources: the arrays, in file order.
        left_out: names of entries that are not arrays.
        several: whether the format can hold more than one array.
        metadata: for the first array, which carries the metadata of a ``.safetensors`` file.
    """

    sources: list[Source]
    left_out: list[str] = field(default_factory=list)
    several: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of all values in bytes."""
        return sum(source.info.nbytes for source in self.sources)


def open_inputs(
    name: str,
    stack: ExitStack,
    dtype: torch.dtype | None,
    shape: tuple[int, ...] | None,
    max_nbytes: int | None = None,
) -> Inputs:
    """Open a file or standard input (``-``); ``stack`` closes it.

    Args:
        name: a path, or ``-``.
        stack: must stay open as long as the sources are used.
        dtype: of raw values; None for self-describing formats.
        shape: of raw values; None for one axis.
        max_nbytes: most memory for an array that cannot be read in chunks; None for the free memory.

    Raises:
        SpecError: the format is unknown, or the file does not match its description.
        CorruptDataError: the file is damaged.
        OSError: the file cannot be opened.
    """
    if shape is not None and dtype is None:
        raise SpecError("--shape describes raw binary, which needs --dtype too")
    if name == STANDARD:
        return stream_inputs(standard_input(stack), dtype, shape)
    path = Path(name)
    suffix = path.suffix.lower()
    if dtype is not None and suffix in SUFFIXES:
        raise SpecError(f"'{name}' describes itself; leave out --dtype and --shape")
    if dtype is not None or suffix == ".npy":
        opened = stack.enter_context(path.open("rb"))
        if dtype is not None:
            return Inputs([raw_source(path.stem, opened, f"'{name}'", dtype, shape)])
        return Inputs([npy_source(path.stem, opened, f"'{name}'")])
    if suffix not in SUFFIXES:
        # a wrong path is the likelier mistake, so report it first
        with path.open("rb"):
            pass
        raise SpecError(
            f"'{name}' is none of {', '.join(SUFFIXES)}; describe raw binary with --dtype f32 "
            "and --shape 100,200"
        )
    return _open_several(path, suffix, stack, max_nbytes)


def stream_inputs(
    file: BinaryIO, dtype: torch.dtype | None, shape: tuple[int, ...] | None
) -> Inputs:
    """Open the array on standard input: raw values if ``dtype`` is given, else ``.npy`` bytes.

    Raises:
        SpecError: it is neither, or the size does not match ``shape``.
        CorruptDataError: the ``.npy`` data is damaged.
    """
    if dtype is not None:
        return Inputs([raw_source(_STANDARD_NAME, file, "standard input", dtype, shape)])
    start = file.tell()
    magic = file.read(len(_NPY_MAGIC))
    file.seek(start)
    if magic.startswith(_ZIP_MAGIC):
        raise SpecError(
            "standard input is a .npz archive or a checkpoint, which cannot be read from a pipe; "
            "save it as a file and name that"
        )
    if magic != _NPY_MAGIC:
        raise SpecError(
            "standard input is not a .npy file; describe raw binary with --dtype f32 and "
            "--shape 100,200"
        )
    return Inputs([npy_source(_STANDARD_NAME, file, "standard input")])


def _open_several(path: Path, suffix: str, stack: ExitStack, max_nbytes: int | None) -> Inputs:
    if suffix == ".safetensors":
        sources, metadata = safetensors_sources(path)
        left_out = [] if sources else [f"{key} (metadata)" for key in metadata]
        prefixed = {f"{METADATA_PREFIX}{key}": text for key, text in metadata.items()}
        return Inputs(sources, left_out, several=True, metadata=prefixed)
    if suffix in CHECKPOINT_SUFFIXES:
        return Inputs(*pt_sources(path), several=True)
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    # zipfile validates little, so a damaged directory fails wherever it is used
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise CorruptDataError(f"'{path}' is not a .npz archive: {error}") from error
    return Inputs(*npz_sources(path, archive, max_nbytes), several=True)


def parse_dtype(text: str | None) -> torch.dtype | None:
    """Parse ``--dtype``, a name of ``DTYPES`` or of torch.

    Raises:
        SpecError: the name is unknown.

    Example:
        >>> parse_dtype("bf16"), parse_dtype("float32")
        (torch.bfloat16, torch.float32)
    """
    if text is None:
        return None
    dtype = DTYPES.get(text) or _DTYPE_ALIASES.get(text)
    if dtype is None:
        raise SpecError(f"unknown dtype {text!r}; choose from {', '.join(DTYPES)}")
    return dtype


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Parse ``--shape``.

    Raises:
        SpecError: ``text`` is not comma-separated whole numbers.

    Example:
        >>> parse_shape("100,200")
        (100, 200)
    """
    if text is None:
        return None
    sizes = [size.strip() for size in text.split(",")]
    whole = all(size.isascii() and size.isdigit() and len(size) < 19 for size in sizes)
    if len(sizes) > MAX_DIMS or not whole:
        raise SpecError(f"--shape must be sizes separated by commas, as in 100,200, not {text!r}")
    return tuple(int(size) for size in sizes)
