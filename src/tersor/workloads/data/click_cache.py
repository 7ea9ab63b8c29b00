"""A folder of prepared samples: its sources, the stage of the preparation, and its files.

``clicks.json`` is written first and replaced after each stage. Every file is written atomically, so a
preparation that was killed resumes where it stopped.

    00000.values     samples as read, categories as values
    00000.samples    the same with categories as ranks by decreasing frequency
    values.bin       u32, the values of all categories by rank, one category after the other
    counts.bin       u64, the number of occurrences of each value
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from tersor.atomic import atomic_write
from tersor.errors import CorruptDataError
from tersor.workloads.data.source_files import Fingerprint
from tersor.workloads.data.vocabulary import U32, Counts
from tersor.workloads.locks import LOCK_NAME, locked_folder

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the current activity, the steps or bytes done, and their total (0: unknown)."""

_FORMAT: Final = "tersor-clicks"
_VERSION: Final = 1
_OWN_FILES: Final = (
    "clicks.json", "values.bin", "counts.bin", "*.values", "*.samples", ".tersor-*",
)  # fmt: skip


class Manifest(msgspec.Struct, frozen=True):
    """The contents of ``clicks.json``.

    Attributes:
        sources: the text files, in order.
        max_rows: the modulus applied to values; None if there is none.
        stage: ``"reading"`` text, ``"ranking"`` values, or ``"ready"``.
        part_samples: samples of each part; known after reading.
        source_samples: samples of each text file; known after reading.
        num_values: distinct values of each category; known after reading.
    """

    sources: tuple[Fingerprint, ...]
    max_rows: int | None
    stage: Literal["reading", "ranking", "ready"] = "reading"
    part_samples: tuple[int, ...] = ()
    source_samples: tuple[int, ...] = ()
    num_values: tuple[int, ...] = ()

    def same_source(self, other: Manifest) -> bool:
        """True if both describe the same samples."""
        return (self.sources, self.max_rows) == (other.sources, other.max_rows)


@dataclass(frozen=True, slots=True)
class ClickCache:
    """The files of one folder."""

    folder: Path

    def manifest(self) -> Manifest | None:
        """Return the manifest of the folder; None if it holds nothing that this version can use."""
        try:
            config = json.loads((self.folder / "clicks.json").read_bytes())
            if (config["format"], config["version"]) != (_FORMAT, _VERSION):
                return None
            return msgspec.convert(config, Manifest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise CorruptDataError(
                f"clicks.json in {self.folder} is damaged; delete the folder"
            ) from error

    def save(self, manifest: Manifest) -> None:
        """Write the manifest atomically."""
        config = {"format": _FORMAT, "version": _VERSION, **msgspec.to_builtins(manifest)}
        with atomic_write(self.folder / "clicks.json") as file:
            file.write(json.dumps(config, indent=1).encode())

    def clear(self) -> None:
        """Remove all files of the cache, the manifest first; other files stay."""
        for pattern in _OWN_FILES:
            for path in self.folder.glob(pattern):
                path.unlink()

    def remove(self) -> None:
        """Remove all files of the cache, and the folder if it is then empty; call only while locked."""
        self.clear()
        (self.folder / LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def remove_leftovers(self) -> None:
        """Remove the temporary files of killed processes."""
        for path in self.folder.glob(".tersor-*"):
            path.unlink()

    def values_path(self, part: int) -> Path:
        """Return the path of the unranked samples of a part."""
        return self.folder / f"{part:05d}.values"

    def samples_path(self, part: int) -> Path:
        """Return the path of the ranked samples of a part."""
        return self.folder / f"{part:05d}.samples"

    def save_vocabulary(self, ranked: Sequence[tuple[U32, Counts]]) -> None:
        """Write the values and counts of every category, by rank."""
        for name, arrays, dtype in (
            ("values.bin", [values for values, _ in ranked], "<u4"),
            ("counts.bin", [counts for _, counts in ranked], "<u8"),
        ):
            with atomic_write(self.folder / name) as file:
                for array in arrays:
                    file.write(np.ascontiguousarray(array, dtype).data)

    def values(self, manifest: Manifest, table: int) -> U32:
        """Return the values of a category, by rank."""
        return np.array(self._column("values.bin", "<u4", manifest, table), np.uint32)

    def counts(self, manifest: Manifest, table: int) -> Counts:
        """Return the counts of the values of a category, by rank, as a memory map."""
        counts: Counts = self._column("counts.bin", "<u8", manifest, table)
        return counts

    def _column(self, name: str, dtype: str, manifest: Manifest, table: int) -> Any:
        before, count = sum(manifest.num_values[:table]), manifest.num_values[table]
        offset = before * np.dtype(dtype).itemsize
        try:
            return np.memmap(self.folder / name, dtype, "r", offset, (count,))
        except (OSError, ValueError) as error:
            raise CorruptDataError(
                f"{name} in {self.folder} is damaged; delete the folder to prepare it anew"
            ) from error

    def locked(self, progress: Progress) -> AbstractContextManager[None]:
        """Create the folder, and lock it against other processes; see ``locked_folder``."""
        words = "waiting for another process that prepares the samples"
        return locked_folder(self.folder, lambda: progress(words, 0, 0))
