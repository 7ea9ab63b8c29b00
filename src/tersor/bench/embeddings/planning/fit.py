"""Fit the costs of codecs and of a machine to result rows.

Rows of exchanges between ranks (suite ``embeddings``) determine all costs; ``coding`` fits rows of codecs
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from tersor.bench.core.exchange_times import DIRECTIONS
from tersor.bench.core.rows import ExchangeRow, LookupRow, ResultRow, latest
from tersor.bench.embeddings.planning.coding import fit_kernels, fit_lookups, keeps_bounds
from tersor.bench.embeddings.planning.model import Fit, Profile
from tersor.errors import SpecError
from tersor.planning import (
    BASELINE,
    Cluster,
    CodecCosts,
    Line,
    Pattern,
    Traffic,
    Transport,
    parse_bandwidth,
)
from tersor.planning.curves import link_fit, nonnegative_fit


def plannable(rows: Iterable[ResultRow]) -> list[ExchangeRow]:
    """Return the exchange rows on throttled links, except ``auto``, whose codecs depend on the link."""
    return [
        row
        for row in rows
        if isinstance(row, ExchangeRow) and row.exchange.link is not None and row.codec != "auto"
    ]


def fit_rows(
    rows: Iterable[ResultRow],
    *,
    codecs: Sequence[str] | None = None,
    model: str | None = None,
    bound: float | None = None,
    backward: str = BASELINE,
    setting: str = "",
) -> Fit:
    """Fit the exchange rows if there are any, else the look-up rows, else those of ``kernels``.

    If rows answer the same question, the last one counts, and the fit's source says so.

    Args:
        rows: rows of result files.
        codecs: names to include in addition to the baseline; None for all.
        model: the input whose exchanges or look-ups to use, if there are several.
        bound: see ``fit_kernels``.
        backward: see ``coding``.
        setting: see ``fit_lookups``.

    Raises:
        SpecError: the rows do not suffice, lack a requested name, or are of a kind to which an argument
            does not apply.
    """
    given = list(rows)
    rows = latest(given)
    exchanges = [row for row in rows if isinstance(row, ExchangeRow)]
    look_ups = [row for row in rows if isinstance(row, LookupRow)]
    if setting and not look_ups:
        raise SpecError("--setting is for rows of look-ups")
    inputs = sorted({row.input for row in exchanges or look_ups})
    if model is not None and inputs and model not in inputs:
        raise SpecError(f"no row is of {model!r}; these are of {', '.join(inputs)}")
    if exchanges:
        if bound is not None or backward != BASELINE:
            raise SpecError("--bound and --backward are for rows of codecs; these are of exchanges")
        fit = fit_exchanges(row for row in exchanges if model in (None, row.input))
    elif look_ups:
        if bound is not None:
            raise SpecError(
                "--bound is for rows of the kernels suite; look-ups have a bound per table"
            )
        own = (row for row in look_ups if model in (None, row.input))
        fit = fit_lookups(own, backward=backward, setting=setting)
    else:
        if model is not None:
            raise SpecError("--input is for rows of exchanges and look-ups; these are of codecs")
        fit = fit_kernels(rows, bound=bound, backward=backward)
    fit = replace(fit, source="; ".join([fit.source, *_not_counted(rows, len(given))]))
    if codecs is None:
        return fit
    for name in codecs:
        if name not in fit.profiles:
            raise SpecError(f"the rows hold {', '.join(fit.profiles)}, but no {name!r}")
    chosen = {name: one for name, one in fit.profiles.items() if name in (BASELINE, *codecs)}
    return replace(fit, profiles=chosen)


def _not_counted(rows: Sequence[ResultRow], num_given: int) -> list[str]:
    """Describe the rows that a plan ignores: those of other kinds, and repeated measurements."""
    kinds = {"exchanges": ExchangeRow, "look-ups": LookupRow, "codecs": ResultRow}
    counts = {word: sum(type(row) is kind for row in rows) for word, kind in kinds.items()}
    _, *others = (f"{count} rows of {word}" for word, count in counts.items() if count)
    words = [f"{' and '.join(others)} are left out"] if others else []
    if len(rows) < num_given:
        words.append("of rows that answer the same question the last one counts")
    return words


def fit_exchanges(rows: Iterable[ResultRow]) -> Fit:
    """Fit all costs to rows of exchanges on throttled links.

    Raises:
        SpecError: there are no such rows, they are of several models, or a direction is missing.
    """
    exchanges = plannable(rows)
    if not exchanges:
        raise SpecError(
            "these rows hold no exchange on a throttled link; make some with tersor bench embeddings"
        )
    if len({row.input for row in exchanges}) > 1:
        names = ", ".join(sorted({row.input for row in exchanges}))
        raise SpecError(f"these rows are of several models ({names}); choose one with --input")
    profiles = {
        name: _profile(name, exchanges) for name in dict.fromkeys(row.codec for row in exchanges)
    }
    compute, allreduce_nbytes = _fit_steps(exchanges)
    first = exchanges[0]
    links = ", ".join(dict.fromkeys(row.exchange.link or "" for row in exchanges))
    ranks = ", ".join(str(n) for n in sorted({row.exchange.num_ranks for row in exchanges}))
    batches = ", ".join(f"{b:,}" for b in sorted({row.exchange.batch for row in exchanges}))
    return Fit(
        profiles=profiles,
        transport=_fit_transport(exchanges),
        sample_nbytes=first.original_nbytes / first.exchange.batch,
        compute=compute,
        allreduce_nbytes=allreduce_nbytes,
        source=f"fitted to {len(exchanges)} rows of {first.input}: {ranks} ranks, links of {links}, batches "
        f"of {batches}",
        measured_nbytes=(min(map(_own_nbytes, exchanges)), max(map(_own_nbytes, exchanges))),
    )


def _own_nbytes(row: ExchangeRow) -> float:
    """Return the original bytes per rank."""
    return row.original_nbytes / row.exchange.num_ranks


def _sending(row: ExchangeRow) -> tuple[float, float]:
    """Return the encoded bytes that a rank sends to others, and the seconds on its node's link."""
    times = row.exchange
    # loopback is not throttled, so traffic within a node only costs host time
    cluster = Cluster(
        ranks_per_node=times.ranks_per_node,
        inter_bits_per_s=_bits_per_s(row),
        intra_bits_per_s=math.inf,
    )
    sent = Traffic.of(
        Pattern.PAIRWISE, row.encoded_nbytes / times.num_ranks, cluster, times.num_ranks
    )
    return sent.rank_nbytes, sent.seconds(cluster)


def _bits_per_s(row: ExchangeRow) -> float:
    return parse_bandwidth(row.exchange.link or "")


def _profile(name: str, rows: Sequence[ExchangeRow]) -> Profile:
    costs: dict[str, CodecCosts] = {}
    for direction in DIRECTIONS:
        own = [r for r in rows if r.codec == name and r.exchange.direction == direction]
        if not own:
            raise SpecError(f"the rows of {name} have no {direction} direction")
        ratios = {r.exchange.batch / r.exchange.num_ranks: r.ratio for r in own}
        costs[direction] = CodecCosts.fit(
            encode=((_own_nbytes(r), r.encode_s.p50) for r in own),
            decode=((_own_nbytes(r), r.decode_s.p50) for r in own),
            ratios=ratios,
            has_sizes=any(r.exchange.sizes_s.p50 > 0 for r in own),
        )
    forward = [r for r in rows if r.codec == name and r.exchange.direction == "forward"]
    return Profile(name, costs["forward"], costs["backward"], keeps_bound=keeps_bounds(forward))


def _fit_transport(rows: Sequence[ExchangeRow]) -> Transport:
    payloads = [row.exchange.payload_s.p50 for row in rows]
    sent, link_s = map(list, zip(*(_sending(row) for row in rows), strict=True))
    ones = [1.0] * len(rows)
    unready = [0.0 if row.exchange.sizes_s.p50 > 0 else 1.0 for row in rows]
    [slowdown], costs = link_fit([link_s], [ones, sent, unready], payloads)
    payload_s, host_s_per_byte, unready_s = costs
    return Transport(
        # 0 in rows without an exchange of sizes
        sizes_s=median([s for row in rows if (s := row.exchange.sizes_s.p50) > 0] or [0.0]),
        payload_s=payload_s,
        unready_s=unready_s,
        host_s_per_byte=host_s_per_byte,
        rest={direction: _fit_rest(rows, direction) for direction in DIRECTIONS},
        efficiency=1.0 / slowdown,
    )


def _fit_rest(rows: Sequence[ExchangeRow], direction: str) -> Line:
    points, wholes = [], []
    for row in rows:
        times = row.exchange
        if times.direction == direction:
            phases = (row.encode_s, times.sizes_s, times.payload_s, row.decode_s)
            rest_s = times.exchange_s.p50 - sum(phase.p50 for phase in phases)
            points.append((_own_nbytes(row), rest_s))
            wholes.append(times.exchange_s.p50)
    return Line.fit(points, wholes)


def _fit_steps(rows: Sequence[ExchangeRow]) -> tuple[Line, float]:
    """Fit computing by samples per rank, and the bytes of the ring all-reduce, to step times."""
    exchanges: dict[tuple[str, str, int], list[ExchangeRow]] = {}
    for row in rows:
        times = row.exchange
        exchanges.setdefault((row.codec, times.place, times.batch), []).append(row)
    rest, steps, samples, rings = [], [], [], []
    for (codec, place, batch), pair in exchanges.items():
        if len(pair) != len(DIRECTIONS):
            raise SpecError(
                f"{codec} on {place} at a batch of {batch} has one direction of its exchange, and a "
                "step has both; measure it again with tersor bench embeddings --resume"
            )
        times = pair[0].exchange
        ranks = times.num_ranks
        steps.append(times.step_s.p50)
        rest.append(times.step_s.p50 - sum(row.exchange.exchange_s.p50 for row in pair))
        samples.append(times.batch / ranks)
        rings.append(2 * (ranks - 1) / ranks * 8 / _bits_per_s(pair[0]))
    columns = [[1.0] * len(rest), samples, rings]
    fixed_s, each_s, nbytes = nonnegative_fit(columns, rest, steps)
    return Line(fixed_s, each_s), nbytes
