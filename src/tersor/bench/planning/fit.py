"""The costs of codecs and of a machine, fitted to result rows.

Rows of exchanges between ranks (suite ``embeddings``) tell everything. Rows of codecs alone (suite
``kernels``) tell what coding costs; sending is then only what the description of the cluster says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from tersor.bench.exchange_times import ExchangeTimes
from tersor.bench.peers import COPIES
from tersor.bench.rows import ResultRow
from tersor.errors import SpecError
from tersor.planning import (
    BASELINE,
    Description,
    Line,
    Model,
    OneWay,
    Profile,
    RatioCurve,
    Transport,
    parse_bandwidth,
)
from tersor.planning.curves import nonnegative_fit

_DIRECTIONS: Final = ("forward", "backward")
_KERNELS_INPUT: Final = "embeddings"
_KERNELS_SAMPLE_NBYTES: Final = 26 * 64 * 4
"""The input of the suite ``kernels``: 26 tables of 64 float32; on a GPU one batch, a slice per table."""
_KERNELS_CPU_ROWS: Final = 2048
"""Rows of a slice of the same input on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What rows say, ready to be joined with a description of a cluster.

    Attributes:
        profiles: of every way to exchange.
        transport: of the machine.
        sample_nbytes: bytes of the rows that one sample looks up.
        compute: seconds of a rank's computing by its samples; None where no steps were measured.
        allreduce_nbytes: of the dense gradients as they weigh on a link; None as well.
        source: one sentence on what was fitted to what.
    """

    profiles: dict[str, Profile]
    transport: Transport
    sample_nbytes: float
    compute: Line | None
    allreduce_nbytes: float | None
    source: str

    @property
    def measured_rows(self) -> tuple[float, float]:
        """Rows per slice, fewest and most, between which ratios are no guesses."""
        points = [
            rows
            for one in self.profiles.values()
            for way in (one.forward, one.backward)
            if not way.ratio.is_flat
            for rows, _ in way.ratio.points
        ]
        return min(points, default=0.0), max(points, default=0.0)

    def model(self, description: Description) -> Model:
        """Return the model of a described cluster; what was described goes before what was fitted."""
        workload = description.workload
        compute = Line() if self.compute is None else self.compute
        nbytes = workload.allreduce_nbytes
        return Model(
            profiles=self.profiles,
            transport=self.transport,
            cluster=description.cluster,
            workload=workload,
            sample_nbytes=workload.sample_nbytes or self.sample_nbytes,
            compute=compute if workload.compute_s is None else Line(workload.compute_s),
            allreduce_nbytes=(self.allreduce_nbytes or 0.0) if nbytes is None else nbytes,
        )


def times_of(row: ResultRow) -> ExchangeTimes:
    """Return the times of a row that is known to have them."""
    if row.exchange is None:
        raise TypeError("only rows of exchanges come here")
    return row.exchange


def plannable(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return the rows of exchanges on throttled links whose codec does not depend on the link."""
    return [
        row
        for row in rows
        if row.exchange is not None and row.exchange.link is not None and row.codec != "auto"
    ]


def latest(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return one row per question: of those that were measured again, the last."""
    return list({row.question: row for row in rows}.values())


def fit_rows(
    rows: Iterable[ResultRow],
    *,
    codecs: Sequence[str] | None = None,
    model: str | None = None,
    bound: float | None = None,
    backward: str = BASELINE,
) -> Fit:
    """Fit rows of exchanges where there are any, else rows of codecs alone.

    Of rows that answer the same question the last one counts; the source then says so.

    Args:
        rows: of result files.
        codecs: names to keep, beside the baseline; None for all.
        model: whose exchanges are taken, of several.
        bound: see ``fit_kernels``.
        backward: see ``fit_kernels``.

    Raises:
        SpecError: the rows do not tell enough, hold no such name, or are not those that an argument
            is for.
    """
    given = list(rows)
    rows = latest(given)
    if any(row.exchange is not None for row in rows):
        if bound is not None or backward != BASELINE:
            raise SpecError("--bound and --backward are for rows of codecs; these are of exchanges")
        fit = fit_exchanges(row for row in rows if model in (None, row.input))
    else:
        if model is not None:
            raise SpecError("--input is for rows of exchanges; these are of codecs")
        fit = fit_kernels(rows, bound=bound, backward=backward)
    if len(rows) < len(given):
        words = "of rows that answer the same question the last one counts"
        fit = replace(fit, source=f"{fit.source}; {words}")
    if codecs is None:
        return fit
    for name in codecs:
        if name not in fit.profiles:
            raise SpecError(f"the rows hold {', '.join(fit.profiles)}, but no {name!r}")
    kept = {name: one for name, one in fit.profiles.items() if name in (BASELINE, *codecs)}
    return replace(fit, profiles=kept)


def fit_exchanges(rows: Iterable[ResultRow]) -> Fit:
    """Fit all costs to rows of exchanges on throttled links.

    Raises:
        SpecError: there are none, of several models, or not of both directions.
    """
    rows = plannable(rows)
    if not rows:
        raise SpecError(
            "these rows hold no exchange on a throttled link; make some with tersor bench embeddings"
        )
    if len({row.input for row in rows}) > 1:
        names = ", ".join(sorted({row.input for row in rows}))
        raise SpecError(f"these rows are of several models ({names}); choose one with --input")
    profiles = {name: _profile(name, rows) for name in dict.fromkeys(row.codec for row in rows)}
    compute, allreduce_nbytes = _fit_steps(rows)
    first = rows[0]
    links = ", ".join(dict.fromkeys(times_of(row).link or "" for row in rows))
    ranks = ", ".join(str(n) for n in sorted({times_of(row).num_ranks for row in rows}))
    batches = ", ".join(f"{b:,}" for b in sorted({times_of(row).batch for row in rows}))
    return Fit(
        profiles=profiles,
        transport=_fit_transport(rows),
        sample_nbytes=first.original_nbytes / times_of(first).batch,
        compute=compute,
        allreduce_nbytes=allreduce_nbytes,
        source=f"fitted to {len(rows)} rows of {first.input}: {ranks} ranks, links of {links}, batches "
        f"of {batches}",
    )


def _own_nbytes(row: ResultRow) -> float:
    """Return the original bytes of one rank."""
    return row.original_nbytes / times_of(row).num_ranks


def _sent_nbytes(row: ResultRow) -> float:
    """Return the encoded bytes that one rank sends to others."""
    ranks = times_of(row).num_ranks
    return row.encoded_nbytes / ranks * (ranks - 1) / ranks


def _bits_per_s(row: ResultRow) -> float:
    return parse_bandwidth(times_of(row).link or "")


def _profile(name: str, rows: Sequence[ResultRow]) -> Profile:
    ways: dict[str, OneWay] = {}
    for direction in _DIRECTIONS:
        own = [r for r in rows if r.codec == name and times_of(r).direction == direction]
        if not own:
            raise SpecError(f"the rows of {name} have no {direction} direction")
        ratios = {times_of(r).batch / times_of(r).num_ranks: r.ratio for r in own}
        ways[direction] = OneWay(
            encode=Line.fit((_own_nbytes(r), r.encode_s.p50) for r in own),
            decode=Line.fit((_own_nbytes(r), r.decode_s.p50) for r in own),
            ratio=RatioCurve.of(ratios),
        )
    forward = [r for r in rows if r.codec == name and times_of(r).direction == "forward"]
    return Profile(
        name, ways["forward"], ways["backward"], keeps_bound=all(_keeps_bound(r) for r in forward)
    )


def _keeps_bound(row: ResultRow) -> bool:
    return bool(row.bound_held) or row.worst_error == 0


def _fit_transport(rows: Sequence[ResultRow]) -> Transport:
    payloads = [times_of(row).payload_s.p50 for row in rows]
    sent = [_sent_nbytes(row) for row in rows]
    link_s = [8 * nbytes / _bits_per_s(row) for nbytes, row in zip(sent, rows, strict=True)]
    ones = [1.0] * len(rows)
    # the link first: with one link only, a cost per byte cannot be told from it
    columns = [link_s, ones, sent]
    slowdown, payload_s, host_s_per_byte = nonnegative_fit(columns, payloads, payloads)
    if slowdown < 1.0:
        # nothing is faster than its link: the other costs are fitted to what full speed leaves
        slowdown = 1.0
        left = [whole - link for whole, link in zip(payloads, link_s, strict=True)]
        payload_s, host_s_per_byte = nonnegative_fit([ones, sent], left, payloads)
    return Transport(
        sizes_s=median(times_of(row).sizes_s.p50 for row in rows),
        payload_s=payload_s,
        host_s_per_byte=host_s_per_byte,
        rest={direction: _fit_rest(rows, direction) for direction in _DIRECTIONS},
        efficiency=1.0 / slowdown,
    )


def _fit_rest(rows: Sequence[ResultRow], direction: str) -> Line:
    points, wholes = [], []
    for row in rows:
        times = times_of(row)
        if times.direction == direction:
            phases = (row.encode_s, times.sizes_s, times.payload_s, row.decode_s)
            rest_s = times.exchange_s.p50 - sum(phase.p50 for phase in phases)
            points.append((_own_nbytes(row), rest_s))
            wholes.append(times.exchange_s.p50)
    return Line.fit(points, wholes)


def _fit_steps(rows: Sequence[ResultRow]) -> tuple[Line, float]:
    """Return computing by samples of a rank, and the bytes of the all-reduce of a ring."""
    exchanges: dict[tuple[str, str, int], list[ResultRow]] = {}
    for row in rows:
        times = times_of(row)
        exchanges.setdefault((row.codec, times.place, times.batch), []).append(row)
    rest, steps, samples, rings = [], [], [], []
    for pair in exchanges.values():
        times = times_of(pair[0])
        ranks = times.num_ranks
        steps.append(times.step_s.p50)
        rest.append(times.step_s.p50 - sum(times_of(row).exchange_s.p50 for row in pair))
        samples.append(times.batch / ranks)
        rings.append(2 * (ranks - 1) / ranks * 8 / _bits_per_s(pair[0]))
    columns = [[1.0] * len(rest), samples, rings]
    fixed_s, each_s, nbytes = nonnegative_fit(columns, rest, steps)
    return Line(fixed_s, each_s), nbytes


def fit_kernels(
    rows: Iterable[ResultRow], *, bound: float | None = None, backward: str = BASELINE
) -> Fit:
    """Fit what coding costs to rows of the suite ``kernels`` on its input of look-ups.

    The baseline is not encoded at all. Of several thread counts the largest is taken.

    Args:
        rows: of one device.
        bound: relative bound of the rows to take; codecs without a bound are always taken.
        backward: the codec that gradients are sent with, for all; its ratio must not depend on
            the data, or what is predicted for gradients is that of look-ups.

    Raises:
        SpecError: no such rows.
    """
    found = [row for row in rows if row.suite == "kernels" and row.input == _KERNELS_INPUT]
    # rows without memcpy start from codes: quantizing would be free
    found = [r for r in found if r.memcpy_s is not None and r.codec not in COPIES]
    bounds = {row.relative_bound for row in found} - {None}
    if bound is None and len(bounds) > 1:
        listed = ", ".join(f"{b:g}" for b in sorted(b for b in bounds if b is not None))
        raise SpecError(f"these rows have several bounds ({listed}); choose one with --bound")
    found = [r for r in found if bound is None or r.relative_bound in (bound, None)]
    if not found:
        raise SpecError(
            "these rows hold neither exchanges nor codecs on look-ups; make some with tersor bench"
        )
    if len({row.device for row in found}) > 1:
        raise SpecError("these rows are of several devices; give files of one")
    free = OneWay(Line(), Line(), RatioCurve(((1.0, 1.0), (2.0, 1.0))))
    by_name: dict[str, list[ResultRow]] = {}
    for row in found:
        by_name.setdefault(f"{row.codec} (peer)" if row.peer else row.codec, []).append(row)
    ways = {BASELINE: free} | {name: _coding(own) for name, own in by_name.items()}
    if backward not in ways:
        raise SpecError(f"no row says how gradients fare with {backward!r}; use {', '.join(ways)}")
    profiles = {
        name: Profile(
            name, way, free if name == BASELINE else ways[backward],
            keeps_bound=name == BASELINE or all(_keeps_bound(r) for r in by_name[name]),
            has_sizes=name != BASELINE,
        )
        for name, way in ways.items()
    }  # fmt: skip
    return Fit(
        profiles=profiles,
        transport=Transport(),
        sample_nbytes=_KERNELS_SAMPLE_NBYTES,
        compute=None,
        allreduce_nbytes=None,
        source=f"coding fitted to {len(found)} rows of codecs on {found[0].device}, gradients as "
        f"{backward}; links are taken at their full bandwidth unless --efficiency says less, and "
        "rows of one size tell no fixed cost per call",
    )


def _coding(rows: Sequence[ResultRow]) -> OneWay:
    threads = max(row.threads for row in rows)
    own = [row for row in rows if row.threads == threads]
    nbytes = [row.original_nbytes * row.sampled_fraction for row in own]
    return OneWay(
        encode=Line.fit(zip(nbytes, (row.encode_s.p50 for row in own), strict=True)),
        decode=Line.fit(zip(nbytes, (row.decode_s.p50 for row in own), strict=True)),
        ratio=RatioCurve.of({_slice_rows(row): row.ratio for row in own}),
    )


def _slice_rows(row: ResultRow) -> float:
    if row.device == "cpu":
        return _KERNELS_CPU_ROWS
    return row.original_nbytes / _KERNELS_SAMPLE_NBYTES
