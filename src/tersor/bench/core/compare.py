"""Compare two sets of result rows.

A time counts as changed only if noise cannot explain it: the intervals from the 20th to the 80th
percentile do not overlap, and the medians differ by more than a margin. Memory has the same margin. A
mean over runs changed only if the confidence intervals do not overlap. Sizes, errors and other figures
do not depend on the machine, so any difference in them counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, Literal

from tersor.bench.core.blocks import SMALLER_IS_BETTER, Estimate
from tersor.bench.core.rows import ResultRow, latest
from tersor.bench.core.timing import Percentiles
from tersor.errors import SpecError

Verdict = Literal["faster", "slower", "better", "worse", "same"]
SizeVerdict = Literal["smaller", "larger", "same"]
ErrorVerdict = Literal["bound broken", "bound held again", "larger", "smaller", "same"]

NOISE_PERCENT: Final = 5.0
"""Medians closer than this are the same. In results/2026-11-kernels-cpu.jsonl, the intervals of two
copies of the same bytes in the same rounds do not overlap in 6 of 100 pairs; in 3 of 100 the medians
also differ by more than 5 %."""

_DRIFT_PERCENT: Final = 10.0
_SAME_DATA: Final = 1e-9
"""Largest relative difference of entropies that the order of summation can cause."""


@dataclass(frozen=True, slots=True)
class TimeChange:
    """One time of a row before and after.

    Attributes:
        name: what was timed, a key of ``ResultRow.times``, such as ``"encode"`` or ``"lead encode"``.
        before: the time in the first file, in seconds or as a multiple of the copy's time.
        after: the time in the second file, in the same unit.
        noise_percent: medians closer than this are the same.
    """

    name: str
    before: Percentiles
    after: Percentiles
    noise_percent: float

    @property
    def verdict(self) -> Verdict:
        """The change, or ``"same"`` if noise can explain it.

        Example:
            >>> quick, slow = Percentiles(0.9, 1.0, 1.1), Percentiles(1.3, 1.5, 1.6)
            >>> change = TimeChange("encode", quick, slow, noise_percent=5)
            >>> change.verdict, change.slowdown_percent
            ('slower', 50.0)
        """
        before, after = self.before.p50, self.after.p50
        apart = max(before, after) > (1 + self.noise_percent / 100) * min(before, after)
        if not apart or self.overlap:
            return "same"
        return "slower" if after > before else "faster"

    @property
    def speed(self) -> float:
        """The median before divided by the median after."""
        return self.before.p50 / max(self.after.p50, 1e-12)

    @property
    def slowdown_percent(self) -> float:
        """The increase of the median in percent; negative if it is faster."""
        return 100 * (self.after.p50 / max(self.before.p50, 1e-12) - 1)

    @property
    def overlap(self) -> bool:
        """Whether the intervals from the 20th to the 80th percentile overlap."""
        return self.before.p20 <= self.after.p80 and self.after.p20 <= self.before.p80

    @property
    def has_spread(self) -> bool:
        """Whether both times have a spread rather than being a single figure."""
        return all(times.p20 < times.p80 for times in (self.before, self.after))


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of quality or memory before and after.

    Attributes:
        name: a key of ``TITLES``.
        before: the figure in the first file.
        after: the figure in the second file.
        noise_percent: memory figures closer than this are the same.
    """

    name: str
    before: Estimate
    after: Estimate
    noise_percent: float

    @property
    def verdict(self) -> Verdict:
        """The change, or ``"same"`` if noise can explain it.

        Example:
            >>> FigureChange("loss", Estimate(mean=2.0), Estimate(mean=1.9), 5).verdict
            'better'
        """
        before, after, margin = self.before, self.after, 0.0
        if self.name.endswith("_nbytes"):
            margin = self.noise_percent / 100 * min(before.mean, after.mean)
        elif before.half_width is not None and after.half_width is not None:
            margin = before.half_width + after.half_width
        if abs(after.mean - before.mean) <= margin:
            return "same"
        is_better = (after.mean < before.mean) == (self.name in SMALLER_IS_BETTER)
        return "better" if is_better else "worse"


@dataclass(frozen=True, slots=True)
class RowPair:
    """One measurement before and after.

    Attributes:
        before: the row in the first file.
        after: the row in the second file.
        times: times that both rows have; empty if times are compared per copy and a row has no copy.
        figures: quality and memory figures that both rows have.
    """

    before: ResultRow
    after: ResultRow
    times: tuple[TimeChange, ...]
    figures: tuple[FigureChange, ...]

    @property
    def size(self) -> SizeVerdict:
        """The change of the encoded size, compared exactly."""
        if self.after.encoded_nbytes == self.before.encoded_nbytes:
            return "same"
        return "larger" if self.after.encoded_nbytes > self.before.encoded_nbytes else "smaller"

    @property
    def error(self) -> ErrorVerdict:
        """The change of the worst error, compared exactly."""
        if (self.before.bound_held, self.after.bound_held) == (True, False):
            return "bound broken"
        if (self.before.bound_held, self.after.bound_held) == (False, True):
            return "bound held again"
        before, after = self.before.worst_error, self.after.worst_error
        if before is None or after is None or before == after:
            return "same"
        return "larger" if after > before else "smaller"

    @property
    def same_data(self) -> bool:
        """Whether the recorded facts are consistent with both inputs being the same."""
        pairs = (
            (self.before.entropy_bits, self.after.entropy_bits),
            (self.before.distinct_rows, self.after.distinct_rows),
            (self.before.original_nbytes, self.after.original_nbytes),
        )
        return all(
            a is None or b is None or math.isclose(a, b, rel_tol=_SAME_DATA) for a, b in pairs
        )

    @property
    def changed(self) -> bool:
        """Whether anything differs by more than noise."""
        return (self.size, self.error) != ("same", "same") or bool(self._verdicts - {"same"})

    @property
    def _verdicts(self) -> set[str]:
        return {c.verdict for c in self.times} | {c.verdict for c in self.figures}

    @property
    def importance(self) -> tuple[int, float]:
        """A sort key that puts losses before gains, and large changes before small ones."""
        verdicts = self._verdicts
        sizes = self.after.encoded_nbytes / max(1, self.before.encoded_nbytes)
        ranks = (
            self.error == "bound broken",
            "slower" in verdicts,
            "worse" in verdicts or self.size == "larger" or self.error == "larger",
            "faster" in verdicts,
            "better" in verdicts
            or self.size == "smaller"
            or self.error in ("smaller", "bound held again"),
        )
        rank = ranks.index(True) if True in ranks else len(ranks)
        factors = [change.speed for change in self.times if change.verdict != "same"]
        largest = max((abs(math.log(max(f, 1e-12))) for f in [*factors, sizes]), default=0.0)
        return rank, -largest


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measurements of two files.

    Attributes:
        pairs: measurements in both files, the most important first.
        only_before: rows that only the first file has.
        only_after: rows that only the second file has.
        warnings: sentences on what limits the comparison.
    """

    pairs: Sequence[RowPair]
    only_before: Sequence[ResultRow]
    only_after: Sequence[ResultRow]
    warnings: Sequence[str]

    def count(self, verdict: Verdict) -> int:
        """Count the changes with a verdict: figures for better and worse, times for the others."""
        if verdict in ("better", "worse"):
            return sum(change.verdict == verdict for p in self.pairs for change in p.figures)
        return sum(change.verdict == verdict for p in self.pairs for change in p.times)

    def slower_than(self, percent: float) -> list[tuple[RowPair, TimeChange]]:
        """Return the times that are slower by more than noise and by more than ``percent``."""
        return [
            (pair, change)
            for pair in self.pairs
            for change in pair.times
            if change.verdict == "slower" and change.slowdown_percent > percent
        ]


def compare_rows(
    before: Sequence[ResultRow],
    after: Sequence[ResultRow],
    *,
    names: tuple[str, str] = ("A", "B"),
    noise_percent: float = NOISE_PERCENT,
    per_copy: bool = False,
) -> Comparison:
    """Match rows by everything but version and commit, and judge each pair.

    Args:
        before: rows of the first file; if it repeats a measurement, the last one counts.
        after: rows of the second file, likewise.
        names: names of the two files, for the warnings.
        noise_percent: medians closer than this are the same.
        per_copy: divide times by the time of the copy in the same rounds. Pairs in which a row has no
            copy are then compared without their times.

    Raises:
        SpecError: the files have no measurement in common, ``per_copy`` is set and no pair has a copy
            to divide by, or the margin is negative.
    """
    if not noise_percent >= 0:
        raise SpecError(f"the margin for noise is a percentage from 0 on, not {noise_percent:g}")
    olds = {row.question: row for row in latest(before)}
    news = {row.question: row for row in latest(after)}
    make = partial(_pair, noise_percent=noise_percent, per_copy=per_copy)
    pairs = [make(row, news[question]) for question, row in olds.items() if question in news]
    if not pairs:
        raise SpecError(
            f"{names[0]} and {names[1]} have no measurement in common; compare runs of one suite "
            "with the same inputs, bounds, threads and codecs"
        )
    if per_copy and not any(pair.times for pair in pairs):
        raise SpecError(
            f"no measurement in both {names[0]} and {names[1]} has a copy to divide by; leave out "
            "--per-copy"
        )
    repeated = [len(before) - len(olds), len(after) - len(news)]
    return Comparison(
        pairs=sorted(pairs, key=lambda pair: pair.importance),
        only_before=[row for question, row in olds.items() if question not in news],
        only_after=[row for question, row in news.items() if question not in olds],
        warnings=_warnings(pairs, (olds, news), repeated, names, per_copy=per_copy),
    )


def _pair(before: ResultRow, after: ResultRow, *, noise_percent: float, per_copy: bool) -> RowPair:
    old_times, new_times = before.times(), after.times()
    if per_copy:
        old_times, new_times = _per_copy(before), _per_copy(after)
    times = tuple(
        TimeChange(name, old, new_times[name], noise_percent)
        for name, old in old_times.items()
        if name in new_times
    )
    news = after.figures()
    figures = tuple(
        FigureChange(name, old, news[name], noise_percent)
        for name, old in before.figures().items()
        if name in news
    )
    return RowPair(before, after, times, figures)


def _per_copy(row: ResultRow) -> dict[str, Percentiles]:
    """Return times as multiples of their copy's; times without a copy are omitted.

    Seconds next to multiples would reintroduce the machine's speed, which the division removes.
    """
    pairs = ((name, one, row.memcpy_of(name)) for name, one in row.times().items())
    return {name: _quotient(one, copy) for name, one, copy in pairs if copy is not None}


def _quotient(times: Percentiles, copy: Percentiles) -> Percentiles:
    """Divide two spreads; the result's interval contains every quotient of their intervals."""
    least = 1e-12
    return Percentiles(
        times.p20 / max(copy.p80, least),
        times.p50 / max(copy.p50, least),
        times.p80 / max(copy.p20, least),
    )


def _warnings(
    pairs: Sequence[RowPair],
    rows: tuple[Mapping[str, ResultRow], Mapping[str, ResultRow]],
    repeated: Sequence[int],
    names: tuple[str, str],
    *,
    per_copy: bool,
) -> list[str]:
    found = [
        f"rows of {name} that a later one replaces: {count}"
        for name, count in zip(names, repeated, strict=True)
        if count
    ]
    machines = [" and ".join(sorted({_machine(r) for r in side.values()})) for side in rows]
    if machines[0] != machines[1]:
        found.append(
            f"{names[0]} is from {machines[0]}, {names[1]} from {machines[1]}: "
            "their times differ for that reason too"
        )
    threads = [sorted({row.threads for row in side.values()}) for side in rows]
    if threads[0] != threads[1]:
        counts = [", ".join(map(str, some)) for some in threads]
        found.append(
            f"numbers of threads are {counts[0]} in {names[0]} and {counts[1]} in {names[1]}; "
            "only equal numbers are compared"
        )
    foreign = sum(not pair.same_data for pair in pairs)
    if foreign:
        found.append(f"measured on other data of the same name: {foreign} of {len(pairs)} pairs")
    lone = sum(not change.has_spread for pair in pairs for change in pair.times)
    if lone:
        found.append(f"times that are single figures, whose noise is unknown: {lone}")
    untimed = sum(not pair.times for pair in pairs)
    if untimed:
        found.append(
            f"no copy to divide by, so that times are left out: {untimed} of {len(pairs)} pairs"
        )
    drift = 1.0 if per_copy else _drift(pairs)
    if abs(math.log(drift)) > math.log1p(_DRIFT_PERCENT / 100):
        found.append(
            f"copying the same bytes took {drift:.2f} times as long in {names[1]}: "
            "the machine itself changed, and --per-copy takes that out"
        )
    return found


def _drift(pairs: Sequence[RowPair]) -> float:
    """Return the median over the pairs of the copy's time after divided by that before."""
    copies = [
        (pair.before.memcpy_of(pair.times[0].name), pair.after.memcpy_of(pair.times[0].name))
        for pair in pairs
        if pair.times
    ]
    quotients = [b.p50 / max(a.p50, 1e-12) for a, b in copies if a is not None and b is not None]
    return max(median(quotients), 1e-12) if quotients else 1.0


def _machine(row: ResultRow) -> str:
    facts = row.machine
    cores = f", {facts['cores']} cores" if "cores" in facts else ""
    cpu = f"{facts.get('cpu', 'an unknown machine')}{cores}"
    return str(facts["gpu"]) if "gpu" in facts else cpu
