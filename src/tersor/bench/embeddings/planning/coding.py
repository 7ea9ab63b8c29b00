"""What coding costs, fitted to rows of codecs alone: of look-ups, or of the suite ``kernels``.

Sending is then only what the description of a cluster says. The baseline is not encoded at all.
Gradients are sent with one codec, ``backward``, for all: its ratio must not depend on the data, or what is
predicted for gradients is that of look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tersor.bench.core.inputs import (
    CRITEO_KAGGLE_ROWS,
    EMBEDDING_BATCH,
    EMBEDDING_DIM,
    embeddings,
)
from tersor.bench.core.lookup_facts import LookupFacts
from tersor.bench.core.rows import ResultRow
from tersor.bench.embeddings.lookups.sums import DumpResults, label, places
from tersor.bench.embeddings.planning.model import Fit, Profile
from tersor.bench.peers import COPIES
from tersor.codecs import registry
from tersor.errors import SpecError
from tersor.planning import BASELINE, UNCODED, CodecCosts

_KERNELS_INPUT: Final = embeddings.__name__
_KERNELS_SAMPLE_NBYTES: Final = len(CRITEO_KAGGLE_ROWS) * EMBEDDING_DIM * 4
"""On a GPU that input is one batch, a slice per table."""
_BATCH: Final = re.compile(r"batches of \d+(, )?")


def fit_kernels(
    rows: Iterable[ResultRow], *, bound: float | None = None, backward: str = BASELINE
) -> Fit:
    """Fit rows of the suite ``kernels`` on its input of look-ups.

    Of several thread counts the largest is taken.

    Args:
        rows: of one device.
        bound: relative bound of the rows to take; codecs without a bound are always taken.
        backward: the codec that gradients are sent with.

    Raises:
        SpecError: no such rows.
    """
    found = [row for row in rows if row.suite == "kernels" and row.input == _KERNELS_INPUT]
    # rows without memcpy start from codes: quantizing would be free
    found = [r for r in found if r.memcpy_s is not None and r.codec not in COPIES]
    # an exchange reads sizes, which a replayed graph cannot wait for
    found = [r for r in found if not r.codec.endswith("-graph")]
    bounds = sorted({row.relative_bound for row in found if row.relative_bound is not None})
    listed = ", ".join(f"{b:g}" for b in bounds)
    if bound is None and len(bounds) > 1:
        raise SpecError(f"these rows have several bounds ({listed}); choose one with --bound")
    if bound is not None and found and bound not in bounds:
        raise SpecError(f"no row has the bound {bound:g}; these rows have {listed or 'none'}")
    found = [r for r in found if bound is None or r.relative_bound in (bound, None)]
    if not found:
        raise SpecError(
            "these rows hold neither exchanges nor codecs on look-ups; make some with tersor bench"
        )
    if len({row.device for row in found}) > 1:
        raise SpecError("these rows are of several devices; give files of one")
    by_name: dict[str, list[ResultRow]] = {}
    for row in found:
        by_name.setdefault(label(row), []).append(row)
    return Fit(
        profiles=_profiles(
            {name: _coding(own) for name, own in by_name.items()},
            {name: keep_bounds(own) for name, own in by_name.items()},
            backward,
        ),
        sample_nbytes=_KERNELS_SAMPLE_NBYTES,
        source=f"coding fitted to {len(found)} rows of codecs on {found[0].device}, gradients as "
        f"{backward}; links are taken at their full bandwidth unless --efficiency says less, and "
        "rows of one size tell no fixed cost per call",
        measured_nbytes=(
            min(row.original_nbytes for row in found),
            max(row.original_nbytes for row in found),
        ),
    )


def keep_bounds(rows: Iterable[ResultRow]) -> bool | None:
    """True if values came back exactly or within promised bounds; None where none was promised."""
    found = {True if row.worst_error == 0 else row.bound_held for row in rows}
    return next(held for held in (False, None, True) if held in found)


def _profiles(
    ways: Mapping[str, CodecCosts], keeps: Mapping[str, bool | None], backward: str
) -> dict[str, Profile]:
    """Return a profile per encoder, beside the baseline; raises ``SpecError`` without ``backward``."""
    every = {BASELINE: UNCODED, **ways}
    if backward not in every:
        raise SpecError(f"no row says how gradients fare with {backward!r}; use {', '.join(every)}")
    back = every[backward]
    if _has_fixed_size(backward):
        back = replace(back, has_sizes=False)
    coded = {name: Profile(name, way, back, keeps_bound=keeps[name]) for name, way in ways.items()}
    return {BASELINE: Profile(BASELINE, UNCODED, UNCODED), **coded}


def _has_fixed_size(name: str) -> bool:
    """True if gradients that an encoder sends have sizes that every rank knows."""
    codec_id = re.sub(r"-(device|graph|hadamard)$", "", name)
    return codec_id in registry.codec_ids() and registry.get(codec_id).size_kind == "fixed"


def _coding(rows: Sequence[ResultRow]) -> CodecCosts:
    threads = max(row.threads for row in rows)
    own = [row for row in rows if row.threads == threads]
    nbytes = [row.original_nbytes * row.sampled_fraction for row in own]
    return CodecCosts.fit(
        encode=zip(nbytes, (row.encode_s.p50 for row in own), strict=True),
        decode=zip(nbytes, (row.decode_s.p50 for row in own), strict=True),
        ratios={
            EMBEDDING_BATCH
            if row.device == "cpu"
            else row.original_nbytes / _KERNELS_SAMPLE_NBYTES: row.ratio
            for row in own
        },
    )


def fit_lookups(rows: Iterable[ResultRow], *, backward: str = BASELINE, setting: str = "") -> Fit:
    """Fit rows of dumped look-ups: bytes and seconds of all tables together.

    Several batches of one dump tell the ratio at several sizes of a slice, and what a call costs at
    least: that of a rank's own slices, or where whole steps were measured in one call, of that call.
    Encoders that were not measured on every table, or whose speed is unknown, are left out.

    Args:
        rows: of one dump on one device; they may differ in ``--batch``.
        backward: the codec that gradients are sent with.
        setting: a part of the words that name the look-ups to take, of those measured in several ways.

    Raises:
        SpecError: rows of several dumps, devices or settings, or of none, or of tables that were not
            looked up equally often.
    """
    found = [place for place in places(rows) if setting in place.words]
    kinds = {(p.input, p.device, p.num_ranks, p.repeat, _BATCH.sub("", p.setting)) for p in found}
    if not found:
        raise SpecError("there are no look-ups of that setting in these rows")
    inputs = sorted({place.input for place in found})
    if len(inputs) > 1:
        raise SpecError(
            f"these rows are of several dumps ({', '.join(inputs)}); choose one with --input"
        )
    if len(kinds) > 1:
        raise SpecError(
            f"these look-ups of {found[0].input} differ in more than their batch "
            f"({'; '.join(p.words for p in found)}); choose by a part of these words with --setting"
        )
    every = list(dict.fromkeys(name for place in found for name in place.encoders))
    names = [name for name in every if all(_is_whole(place, name) for place in found)]
    if not names:
        raise SpecError(
            "no encoder was measured on every table of these look-ups; go on with --resume"
        )
    for place in found:
        _check_even(place)
    first = found[0]
    sizes = [amount for amount, _ in (_parts(place, names[0])[0] for place in found)]
    batches = ", ".join(f"{_slice_rows(p) * p.num_ranks:,.0f}" for p in found)
    return Fit(
        profiles=_profiles(
            {name: _lookup_coding(found, name) for name in names},
            {
                name: keep_bounds(rows[name] for place in found for rows in place.tables.values())
                for name in names
            },
            backward,
        ),
        sample_nbytes=sum(4 * _facts(first, table).width for table in first.tables),
        source=f"coding fitted to {first.tables_words} of {first.input} on {first.device}, batches of "
        f"{batches}, gradients as {backward}{_warnings(found, every, names)}; links are taken at their full bandwidth "
        "unless --efficiency says less",
        measured_nbytes=(min(sizes), max(sizes)),
    )


def _check_even(place: DumpResults) -> None:
    """Refuse tables with other numbers of rows or slices than the first has."""
    every = [_facts(place, table) for table in place.tables]
    if len({(facts.num_rows, facts.num_slices) for facts in every}) > 1:
        raise SpecError(
            f"the tables of {place.input} were not looked up equally often; plan from dumps of whole steps"
        )


def _warnings(found: Sequence[DumpResults], every: Sequence[str], names: Sequence[str]) -> str:
    """Say what a reader must know of these look-ups."""
    words, repeat = [""], found[0].repeat
    if repeat > 1:
        words.append(f"rows REPEATED {repeat} times, which flatters copies")
    left_out = [name for name in every if name not in names]
    if left_out:
        words.append(f"{', '.join(left_out)} left out, without a speed on every table and batch")
    if len(found) == 1:
        words.append("rows of one size tell no fixed cost per call")
    return "; ".join(words)


def _is_whole(place: DumpResults, name: str) -> bool:
    total = place.overall(name)
    return total.num_tables == len(place.tables) and total.is_predictable


def _lookup_coding(found: Sequence[DumpResults], name: str) -> CodecCosts:
    encode, decode = zip(*(_parts(place, name) for place in found), strict=True)
    ratios = {_slice_rows(place): place.overall(name).ratio for place in found}
    return CodecCosts.fit(encode, decode, ratios)


def _parts(place: DumpResults, name: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return bytes and seconds of encoding, and of decoding, what a rank does in one exchange.

    Tables are measured one after the other, slices of all ranks, of which a rank has its share;
    a whole step in one call stays one call.
    """
    total, facts = place.overall(name), _facts(place, next(iter(place.tables)))
    num_parts = facts.num_slices / facts.num_ranks if place.steps else facts.num_slices
    nbytes = total.original_nbytes / num_parts
    return (nbytes, total.encode_s / num_parts), (nbytes, total.decode_s / num_parts)


def _slice_rows(place: DumpResults) -> float:
    facts = _facts(place, next(iter(place.tables)))
    return facts.num_rows / facts.num_slices


def _facts(place: DumpResults, table: int) -> LookupFacts:
    return next(iter(place.tables[table].values())).lookups
