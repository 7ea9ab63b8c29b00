"""Criteo's click logs: ``train.txt`` of the Kaggle contest, and the days of the Terabyte set.

Samples are in the order of the log. Rows of tables are numbered by decreasing frequency over the whole
log, so the most common value is row 0.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.click_cache import ClickCache, Manifest, Progress
from tersor.workloads.data.clicks import NUM_TABLES, ClickBatch, Split, check_range
from tersor.workloads.data.preparation import prepare
from tersor.workloads.data.progress import terminal_bar
from tersor.workloads.data.sample_file import SampleFile
from tersor.workloads.data.samples import Numbering, Samples
from tersor.workloads.data.vocabulary import num_at_least

TERABYTE_MAX_ROWS: Final = 10_000_000
_DAY: Final = re.compile(r"day_(\d+)(\.gz)?")
_KAGGLE_DAYS: Final = 7


@dataclass(frozen=True, slots=True)
class CriteoClicks:
    """A prepared log; it holds no open files, so it can be passed to other processes.

    Attributes:
        name: for logs and reports.
        cache: the folder of prepared samples.
        manifest: of that folder.
        numbering: assigns rows to values.
        part_ends: end of each part, in samples of the whole log.
    """

    name: str
    cache: ClickCache
    manifest: Manifest
    numbering: Numbering
    part_ends: tuple[int, ...]

    @property
    def num_rows(self) -> tuple[int, ...]:
        """See ``ClickSource.num_rows``."""
        return self.numbering.num_rows

    def num_samples(self, split: Split) -> int:
        """See ``ClickSource.num_samples``."""
        start, stop = self._range(split)
        return stop - start

    def read(self, split: Split, start: int, count: int) -> ClickBatch:
        """See ``ClickSource.read``.

        Raises:
            CorruptDataError: a prepared file is missing or damaged.
        """
        check_range(self, split, start, count)
        return self.numbering.batch(self._samples(self._range(split)[0] + start, count))

    def _range(self, split: Split) -> tuple[int, int]:
        """Return the range of a split in the whole log.

        The test split of a single file is its last seventh, which is the last of seven days. The test
        split of several files is the second half of the last one; its first half is reserved for
        validation and belongs to no split.
        """
        total, last = sum(self.manifest.source_samples), self.manifest.source_samples[-1]
        if len(self.manifest.source_samples) == 1:
            middle = total - total // _KAGGLE_DAYS
            return (0, middle) if split == "train" else (middle, total)
        return (0, total - last) if split == "train" else (total - last // 2, total)

    def _samples(self, start: int, count: int) -> Samples:
        """Return a range of ranked samples, counted over the whole log."""
        pieces = []
        while count:
            number = bisect_right(self.part_ends, start)
            end = self.part_ends[number]
            taken = min(count, end - start)
            part = SampleFile.open(self.cache.samples_path(number))
            if part.num_samples != self.manifest.part_samples[number]:
                raise CorruptDataError(f"{self.cache.folder} is damaged; delete it")
            pieces.append(part.read(start - end + part.num_samples, taken))
            start, count = start + taken, count - taken
        return Samples.joined(pieces) if pieces else Samples.empty(0)


def open_criteo(
    paths: Sequence[Path],
    *,
    cache: str | os.PathLike[str] | None = None,
    max_rows: int | None = None,
    min_count: int = 1,
    progress: Progress | None = None,
) -> CriteoClicks:
    """Open the text files of one log; the first time, they are read once and prepared.

    Args:
        paths: one file, or one per day in order; gzip is detected.
        cache: parent of the folder of prepared samples; None for the folder of the first file.
            Prepared samples take 157 bytes each.
        max_rows: limit on the rows of each table. Values are taken modulo this before they are
            numbered, as by DLRM's ``--max-ind-range``; None keeps all values distinct.
        min_count: values that occur less often share row 0.
        progress: reports the preparation; None shows a bar on the terminal.

    Raises:
        CorruptDataError: a line cannot be parsed; the message names file and line.
        SpecError: a file cannot be read, or an option is invalid.
    """
    if min_count < 1:
        raise SpecError(f"min_count must be at least 1, not {min_count}")
    names = paths[0].name if len(paths) == 1 else f"{paths[0].name} to {paths[-1].name}"
    folder = names.replace(" ", "_") + ".clicks" + (f"-{max_rows}" if max_rows else "")
    prepared = ClickCache((paths[0].parent if cache is None else Path(cache)) / folder)
    with terminal_bar() if progress is None else nullcontext(progress) as report:
        manifest = prepare(paths, prepared, report, max_rows)
    numbering = _numbering(prepared, manifest, min_count)
    ends = tuple(accumulate(manifest.part_samples))
    source = CriteoClicks(names, prepared, manifest, numbering, ends)
    if not (source.num_samples("train") and source.num_samples("test")):
        with prepared.locked(progress or (lambda *_: None)):
            prepared.remove()
        raise SpecError(f"{names} has too few samples to be split into training and test")
    return source


def _numbering(cache: ClickCache, manifest: Manifest, min_count: int) -> Numbering:
    num_frequent = manifest.num_values
    if min_count > 1:
        num_frequent = tuple(
            num_at_least(cache.counts(manifest, table), min_count) for table in range(NUM_TABLES)
        )
    return Numbering(manifest.num_values, num_frequent, min_count)


def day_files(folder: Path) -> list[Path]:
    """Return the files ``day_0``, ``day_1.gz`` and so on of a folder, in order of days.

    Raises:
        SpecError: a day occurs twice.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := _DAY.fullmatch(path.name):
            day = int(match[1])
            if day in found:
                raise SpecError(
                    f"{folder} has both {found[day].name} and {path.name}; name the files to use"
                )
            found[day] = path
    return [found[day] for day in sorted(found)]


def is_day_file(path: Path) -> bool:
    """True if a file is named like a day of the Terabyte set."""
    return _DAY.fullmatch(path.name) is not None
