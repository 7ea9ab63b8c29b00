"""A folder of dumped look-ups, with tables and iterations identified by names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from tersor.bench.embeddings.lookups.inputs import LookUp, LookUps, checked_look_ups
from tersor.chunks import Chunk
from tersor.cli.arrays.inputs import SUFFIXES, Inputs, open_inputs
from tersor.cli.arrays.source import Source
from tersor.errors import SpecError

RAW_SUFFIXES: Final = (".bin", ".dat", ".f32", ".raw")
TABLES_FILE: Final = "tables.json"
"""File with the sizes of the tables, as written by ``tersor train dlrm --dump-embeddings``."""
_TABLE: Final = re.compile(r"(?<![a-z])(?:table|tbl|emb|embedding|t)[-_ .=]?(\d+)", re.IGNORECASE)
_ITERATION: Final = re.compile(
    r"(?<![a-z])(?:step|iteration|iter|it|batch)[-_ .=]?(\d+)", re.IGNORECASE
)


_Entry: TypeAlias = tuple[Path, str, int]
"""One array of one file: its path, the name of the array, and the iteration."""


class FolderLookUps(LookUps):
    """Look-ups dumped by ``tersor train dlrm --dump-embeddings``, or in a similar form by other programs.

    Table and iteration are parsed from the names of files and arrays, as in
    ``step-000000100-table-03.npy``, ``iter_100.npz`` with arrays ``table_3``, or ``emb_3.pt``. Arrays
    without a table number are numbered in the order of their names; a missing iteration is 0.
    """

    def __init__(self, folder: str, dim: int | None = None) -> None:
        """Index the files of a folder.

        Args:
            folder: folder with the dumps; subfolders are not searched.
            dim: values per row, for raw float32 and other flat lists.

        Raises:
            SpecError: the folder is missing or empty, or contains files that are not dumps.
            CorruptDataError: a file is damaged.
        """
        path = Path(folder)
        if path.exists() and not path.is_dir():
            raise SpecError(f"'{folder}' is a file; name the folder that it is in")
        if not path.is_dir():
            raise SpecError(f"there is no folder '{folder}'; name the one that the dumps are in")
        if dim is not None and dim < 1:
            raise SpecError(f"--dim must be at least 1, not {dim}")
        self.name, self._dim = path.resolve().name, dim
        self._entries = _entries(path, dim)
        self.num_rows = _num_rows(path / TABLES_FILE)

    @property
    def tables(self) -> Sequence[int]:
        """See ``LookUps.tables``."""
        return sorted(self._entries)

    def read(self, table: int) -> list[LookUp]:
        """See ``LookUps.read``."""
        found = [
            LookUp(when, self._rows(path, array)) for path, array, when in self._entries[table]
        ]
        return checked_look_ups(table, found)

    def _rows(self, path: Path, array: str) -> torch.Tensor:
        with ExitStack() as stack:
            sources = _open(path, self._dim, stack).sources
            source = next(one for one in sources if one.name == array)
            shape, numel = source.info.shape, source.info.numel
            self._check(f"'{path}'" if path.stem == array else f"{array!r} of '{path}'", source)
            values = source.chunk(Chunk(0, numel, shape)).clone()
        width = shape[-1] if len(shape) > 1 else self._dim
        return values.view(-1, width or 1)

    def _check(self, name: str, source: Source) -> None:
        """Raise ``SpecError`` unless the array holds float32 rows of the given width."""
        info, dim = source.info, self._dim
        if info.dtype != torch.float32:
            kind = str(info.dtype).removeprefix("torch.")
            raise SpecError(
                f"{name} holds {kind}; look-ups are float32, which ratios count against: convert it "
                "with .astype(np.float32) or .float()"
            )
        if len(info.shape) < 2 and dim is None:
            raise SpecError(f"{name} is a flat list; say how many values a row has with --dim N")
        is_flat = len(info.shape) < 2
        if dim is not None and (info.numel % dim if is_flat else info.shape[-1] != dim):
            found = f"{info.numel} values" if is_flat else f"rows of {info.shape[-1]} values"
            raise SpecError(f"{name} has {found}, which --dim {dim} does not fit")


def _natural(path: Path) -> list[Any]:
    """Return a sort key that orders file 10 after file 9."""
    parts = re.split(r"(\d+)", path.stem)
    return [int(part) if k % 2 else part.lower() for k, part in enumerate(parts)]


def _files(folder: Path, dim: int | None) -> Iterator[Path]:
    known = (*SUFFIXES, *RAW_SUFFIXES)
    for path in sorted(folder.iterdir(), key=_natural):
        if path.name.startswith(".") or path.name == TABLES_FILE:
            continue
        if path.suffix.lower() not in known or not path.is_file():
            raise SpecError(
                f"'{path}' is no dump of look-ups, which are {', '.join(SUFFIXES)}, or raw float32 "
                f"in {', '.join(RAW_SUFFIXES)}; move it elsewhere"
            )
        if path.suffix.lower() in RAW_SUFFIXES and dim is None:
            raise SpecError(f"'{path}' is raw float32; say how many values a row has with --dim N")
        yield path


def _open(path: Path, dim: int | None, stack: ExitStack) -> Inputs:
    if path.suffix.lower() not in RAW_SUFFIXES:
        return open_inputs(str(path), stack, None, None)
    num_bytes = path.stat().st_size
    if dim is None or num_bytes % (4 * dim):
        raise SpecError(
            f"'{path}' has {num_bytes} bytes, which are no rows of {dim} float32 values; "
            "check --dim"
        )
    return open_inputs(str(path), stack, torch.float32, (num_bytes // 4 // dim, dim))


def _entries(folder: Path, dim: int | None) -> dict[int, list[_Entry]]:
    found: dict[int, list[_Entry]] = {}
    unnumbered: dict[int, int] = {}
    for path in _files(folder, dim):
        with ExitStack() as stack:
            names = [source.name for source in _open(path, dim, stack).sources]
        for name in names:
            iteration = _number(_ITERATION, name, path.stem) or 0
            table = _number(_TABLE, name, path.stem)
            if table is None:
                table = unnumbered.get(iteration, 0)
                unnumbered[iteration] = table + 1
            found.setdefault(table, []).append((path, name, iteration))
    if not found:
        raise SpecError(
            f"there are no dumps in '{folder}'; make some with "
            "'tersor train dlrm --dump-embeddings DIR'"
        )
    return found


def _number(pattern: re.Pattern[str], *names: str) -> int | None:
    """Return the number in the first name that matches; None if none does."""
    matches = (pattern.search(name) for name in names)
    return next((int(match[1]) for match in matches if match is not None), None)


def _num_rows(path: Path) -> dict[int, int]:
    if not path.exists():
        return {}
    try:
        sizes = json.loads(path.read_text(encoding="utf-8"))["num_rows"]
    except (KeyError, TypeError, ValueError):
        sizes = None
    if not isinstance(sizes, list) or any(type(size) is not int or size < 1 for size in sizes):
        raise SpecError(
            f"'{path}' does not say how large the tables are, as {{\"num_rows\": [1460, 583]}} "
            "does; correct or remove it"
        )
    return dict(enumerate(sizes))
