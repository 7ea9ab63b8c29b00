"""Conversion of text to a folder of samples, in one pass over the text and one over the result.

The first pass parses, counts values and writes parts; the second replaces values by ranks, part by part.
Memory is bounded by one part and the distinct values. A preparation that was killed resumes with the
part it was writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.click_cache import ClickCache, Manifest, Progress
from tersor.workloads.data.clicks import NUM_TABLES
from tersor.workloads.data.criteo_lines import parse_lines
from tersor.workloads.data.sample_file import SampleFile
from tersor.workloads.data.samples import Samples
from tersor.workloads.data.source_files import Fingerprint, read_lines
from tersor.workloads.data.vocabulary import Ranks, ValueCounts, check_max_rows, modulo_vocabulary

PART_SAMPLES: Final = 1 << 19
"""A part is closed once it has at least this many samples, of 157 bytes each."""


def prepare(
    paths: Sequence[Path],
    cache: ClickCache,
    progress: Progress,
    max_rows: int | None = None,
    part_samples: int = PART_SAMPLES,
) -> Manifest:
    """Fill ``cache`` with the samples of text files, unless it is already complete.

    Args:
        paths: the files, in order; gzip is detected.
        cache: destination of the samples; it is rebuilt if the files have changed.
        progress: reports the progress.
        max_rows: values are taken modulo this.
        part_samples: see ``PART_SAMPLES``.

    Raises:
        CorruptDataError: a line cannot be parsed, or a prepared file is damaged.
        SpecError: a file cannot be read or changes meanwhile, or the folder cannot be written.

    A text that is rejected leaves no folder behind.
    """
    check_max_rows(max_rows)
    wanted = Manifest(tuple(Fingerprint.of(path) for path in paths), max_rows)
    found = cache.manifest()
    if found is not None and found.same_source(wanted) and found.stage == "ready":
        return found
    with cache.locked(progress):
        # another process may have finished meanwhile
        found = cache.manifest()
        if found is None or not found.same_source(wanted):
            cache.clear()
            cache.save(found := wanted)
        cache.remove_leftovers()
        if found.stage == "reading":
            cache.save(found := _Reading(paths, cache, found, progress).run(part_samples))
        if found.stage == "ranking":
            _rank(cache, found, progress)
            cache.save(found := structs.replace(found, stage="ready"))
    return found


class _Reading:
    """The first pass: writes the text as parts of samples, and counts each value."""

    def __init__(
        self, paths: Sequence[Path], cache: ClickCache, manifest: Manifest, progress: Progress
    ) -> None:
        self._paths, self._cache = paths, cache
        self._manifest, self._progress = manifest, progress
        self._counts = [ValueCounts() for _ in range(NUM_TABLES)]
        self._parts: list[SampleFile] = []

    def run(self, part_samples: int) -> Manifest:
        """Write the missing parts; return the manifest of the next stage."""
        self._take_up()
        try:
            self._read_files(part_samples)
        except (CorruptDataError, SpecError) as error:
            # keep parts only if the same text may be readable later, as after an error of the system
            is_of_system = isinstance(error, SpecError) and isinstance(error.__cause__, OSError)
            if not (self._parts and is_of_system):
                self._cache.remove()
            raise
        ranked = [counts.ranked() for counts in self._counts]
        self._cache.save_vocabulary(ranked)
        return structs.replace(
            self._manifest,
            stage="ranking",
            part_samples=tuple(part.num_samples for part in self._parts),
            source_samples=tuple(self._num_samples(i) for i in range(len(self._paths))),
            num_values=tuple(len(values) for values, _ in ranked),
        )

    def _read_files(self, part_samples: int) -> None:
        """Write the missing parts of all files; raise ``SpecError`` if a file changed meanwhile."""
        for source in range(self._parts[-1].source if self._parts else 0, len(self._paths)):
            self._read_file(source, part_samples)
        changed = [
            path.name
            for path, was in zip(self._paths, self._manifest.sources, strict=True)
            if Fingerprint.of(path) != was
        ]
        if changed:
            raise SpecError(
                f"{changed[0]} changed while it was read; open it again when it is done"
            )

    def _num_samples(self, source: int) -> int:
        return sum(part.num_samples for part in self._parts if part.source == source)

    def _take_up(self) -> None:
        """Resume: count the values of the existing parts."""
        there = sorted(self._cache.folder.glob("*.values"))
        for number, path in enumerate(there):
            self._progress("taking up what was read before", number, len(there))
            part = SampleFile.open(path)
            self._parts.append(part)
            self._count(part.read_all())

    def _read_file(self, source: int, part_samples: int) -> None:
        """Write the missing parts of one file."""
        path, sizes = self._paths[source], [one.nbytes for one in self._manifest.sources]
        own = [part for part in self._parts if part.source == source]
        start, num_read = own[-1].text_end if own else 0, self._num_samples(source)
        text_end = start
        blocks: list[Samples] = []
        for text, text_end, source_nbytes in read_lines(path, start):
            samples = parse_lines(text, num_read + 1, path.name)
            values = modulo_vocabulary(samples.categories, self._manifest.max_rows)
            blocks.append(replace(samples, categories=values))
            num_read += len(samples)
            if sum(len(block) for block in blocks) >= part_samples:
                self._close_part(blocks, source, text_end)
                blocks = []
            done = sum(sizes[:source]) + source_nbytes
            self._progress(f"reading {path.name}", done, sum(sizes))
        if blocks:
            self._close_part(blocks, source, text_end)
        if not num_read:
            raise SpecError(f"{path} is empty; a click log has one sample per line")

    def _close_part(self, blocks: list[Samples], source: int, text_end: int) -> None:
        samples = Samples.joined(blocks)
        target = self._cache.values_path(len(self._parts))
        self._parts.append(SampleFile.write(target, samples, source, text_end))
        self._count(samples)

    def _count(self, samples: Samples) -> None:
        for table, counts in enumerate(self._counts):
            counts.add(samples.categories[:, table])


def _rank(cache: ClickCache, manifest: Manifest, progress: Progress) -> None:
    """Replace values by ranks in all parts that still hold values."""
    ranks = [Ranks(cache.values(manifest, table)) for table in range(NUM_TABLES)]
    num_parts = len(manifest.part_samples)
    for number in range(num_parts):
        progress("numbering values", number, num_parts)
        if not cache.samples_path(number).exists():
            part = SampleFile.open(cache.values_path(number))
            samples = part.read_all()
            for table, rank in enumerate(ranks):
                samples.categories[:, table] = rank(samples.categories[:, table])
            SampleFile.write(cache.samples_path(number), samples, part.source, part.text_end)
        cache.values_path(number).unlink(missing_ok=True)
