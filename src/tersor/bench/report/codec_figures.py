"""Figures of comparable codecs and peers: Pareto front, rate-distortion, links, roofline, tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.core.rows import ResultRow
from tersor.bench.plots import Bar, Point, bar_chart, line_chart, scatter_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.measured import Measured, bounds_of, main_threads, measured

CODING: Final = ("encode", "decode")
_NUM_STEPS: Final = 48
_LEAST_GAIN: Final = 0.3


def codec_figures(run: str, label: str, rows: Sequence[ResultRow]) -> list[Figure]:
    """Return all figures for which the comparable rows of one place suffice."""
    threads = main_threads(rows)
    many = "" if threads == 1 else f", {threads} threads"
    figures: list[Figure] = []
    for k, bound in enumerate(bounds_of(rows)):
        ours = _without_copies(measured(rows, bound, threads))
        free = [] if bound is None else _without_copies(measured(rows, None, threads))
        at = f"{label}{many}" if bound is None else f"{label}{many}, relative bound {bound:g}"
        name = (run, label, "" if bound is None else f"{bound:g}")
        folded = k > 0
        if len(ours) > 1:
            figures += [front_figure(d, name, at, ours, free, folded=folded) for d in CODING]
            figures.append(links_figure(name, at, ours, folded=folded))
        if any(one.ceiling_gbps for one in ours) and not folded:
            figures += [_roofline(direction, name, at, ours) for direction in CODING]
    distortion = _distortion((run, label), f"{label}{many}", rows, threads)
    tables = _tables((run, label), label, rows, threads)
    return [figure for figure in (*figures, distortion, tables) if figure is not None]


def _without_copies(found: Sequence[Measured]) -> list[Measured]:
    return [one for one in found if not one.is_copy]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point beats in both coordinates, in order of x.

    Example:
        >>> pareto_front([(1, 9), (2, 5), (3, 6), (4, 1), (2, 2)])
        [(1, 9), (3, 6), (4, 1)]
    """
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def _speed(one: Measured, direction: str) -> float:
    return one.encode_gbps if direction == "encode" else one.decode_gbps


def front_figure(
    direction: str, name: Sequence[str], at: str, bounded: Sequence[Measured],
    free: Sequence[Measured], *, folded: bool,
) -> Figure:  # fmt: skip
    """Return a figure of ratio against speed, with the Pareto front of the bounded codecs."""
    places = {one: (_speed(one, direction), one.ratio) for one in (*bounded, *free)}
    front = pareto_front([places[one] for one in bounded if not one.broken])
    # points on the front have priority for their names, then ours
    order = sorted(bounded, key=lambda one: (places[one] not in front, one.peer))
    points = [Point(one.name, *places[one], one.kind) for one in (*order, *free)]
    svg = scatter_chart(
        f"Ratio against {direction} speed: {at}",
        f"{direction} speed, GB/s of float32", "ratio", points,
        lines={"Pareto front": front}, log_x=True, log_y=True,
    )  # fmt: skip
    caption = (
        "Up and to the right is better; no codec that holds the bound lies beyond the front."
        + (" Those without a bound promise a size, not an error." if free else "")
        + (" ! broke its bound." if any(one.broken for one in bounded) else "")
    )
    return Figure(slug(name[0], "ratio", direction, *name[1:]), svg, caption, folded)


def links_figure(
    name: Sequence[str], at: str, found: Sequence[Measured], *, folded: bool
) -> Figure:
    """Return a figure of speed-up over bandwidth; only codecs that are best somewhere have colour."""
    links = [0.1 * 10 ** (4.5 * k / _NUM_STEPS) for k in range(_NUM_STEPS + 1)]
    whole = [one for one in found if not one.broken]
    gains = {one.described: [(link, one.speedup(link)) for link in links] for one in whole}
    best = {max(gains, key=lambda label: gains[label][k][1]) for k in range(len(links)) if gains}
    # it does not matter by how much a codec is too slow
    series = {label: [p for p in line if p[1] >= _LEAST_GAIN] for label, line in gains.items()}
    faint = [label for label in series if label not in best]
    svg = line_chart(
        f"Predicted speed-up against bandwidth: {at}", "bandwidth, Gbit/s", series,
        y_label="times faster than float32", log_x=True, log_y=True, faint=faint,
        level=(1.0, "float32"),
    )  # fmt: skip
    caption = (
        "Encoding, sending and decoding one after the other, against sending float32. Named: those "
        "that are fastest on some link; grey: the others."
    )
    return Figure(slug(name[0], "bandwidth", *name[1:]), svg, caption, folded)


def _roofline(direction: str, name: Sequence[str], at: str, found: Sequence[Measured]) -> Figure:
    """Return a figure of speeds below the limit that a copy's memory throughput sets."""
    held = [one for one in found if one.ceiling_gbps is not None]
    ceilings = sorted(one.ceiling_gbps or 0.0 for one in held)
    ceiling = ceilings[len(ceilings) // 2]
    low, high = min(one.ratio for one in held) / 1.2, max(one.ratio for one in held) * 1.2
    steps = [low * (high / low) ** (k / 30) for k in range(31)]
    roof = [(ratio, ceiling / (1 + 1 / ratio)) for ratio in steps]
    order = sorted(held, key=lambda one: one.peer)
    points = [Point(one.name, one.ratio, _speed(one, direction), one.kind) for one in order]
    svg = scatter_chart(
        f"Roofline, {direction}: {at}", "ratio", f"{direction} speed, GB/s of float32", points,
        lines={f"what a copy's {ceiling:,.0f} GB/s allow": roof}, log_x=True, log_y=True,
    )  # fmt: skip
    caption = (
        "The line is how fast a codec could be that only reads floats and writes its bytes, or back, "
        "at the speed of a plain copy in the same run."
    )
    return Figure(slug(name[0], "roofline", direction, *name[1:]), svg, caption)


def _distortion(
    name: Sequence[str], at: str, rows: Sequence[ResultRow], threads: int
) -> Figure | None:
    bounds = sorted(bound for bound in bounds_of(rows) if bound is not None)
    if len(bounds) < 2:
        return None
    series: dict[str, list[tuple[float, float]]] = {}
    peers = set()
    for bound in bounds:
        for one in measured(rows, bound, threads):
            # a codec that broke its bound at one point is still the same codec
            label = one.label.replace("!", "")
            peers |= {label} if one.peer else set()
            if one.error is not None:
                series.setdefault(label, []).append((one.error, one.bits_per_value))
    if not any(len(points) > 1 for points in series.values()):
        return None
    svg = line_chart(
        f"Rate and distortion: {at}", "worst error, as a share of the range", series,
        y_label="bits per value", log_x=True, log_y=True, dashed=peers,
    )  # fmt: skip
    caption = "Down and to the left is better. The error is the worst one measured, not the bound."
    return Figure(slug(name[0], "rate-distortion", *name[1:]), svg, caption)


def _tables(
    name: Sequence[str], label: str, rows: Sequence[ResultRow], threads: int
) -> Figure | None:
    """Return a figure of the best ratio per table, or None if the rows are not of several tables."""
    bound = bounds_of(rows)[0]
    best: dict[str, ResultRow] = {}
    for row in rows:
        is_shown = row.group is not None and row.threads == threads and row.relative_bound == bound
        if is_shown and row.bound_held is not False:
            group = row.group or ""
            if group not in best or row.ratio > best[group].ratio:
                best[group] = row
    if len(best) < 2:
        return None
    bars = [Bar(group, row.ratio, row.codec) for group, row in best.items()]
    at = label if bound is None else f"{label}, relative bound {bound:g}"
    svg = bar_chart(f"Best ratio per table: {at}", "ratio", bars)
    return Figure(slug(name[0], "tables", *name[1:]), svg, "The codec with the largest ratio.")
