"""Fit coding costs to rows of codecs alone: those of look-ups, or of the ``kernels`` suite.

The costs of sending then come only from the description of a cluster. The baseline is not encoded at
all. All gradients are sent with one codec, ``backward``. Its ratio must not depend on the data; otherwise
gradients are predicted with the ratio of look-ups.
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
"""Bytes of one sample in the kernels input, which on a GPU is one batch with one slice per table."""
_BATCH: Final = re.compile(r"batches of \d+(, )?")


def fit_kernels(
    rows: Iterable[ResultRow], *, bound: float | None = None, backward: str = BASELINE
) -> Fit:
    """Fit the rows of the ``kernels`` suite on its input of look-ups.

    If there are several thread counts, the largest is used.

    Args:
        rows: rows of one device.
        bound: relative bound of the rows to use; codecs without a bound are always used.
        backward: the codec for gradients.

    Raises:
        SpecError: there are no such rows, they have several bounds or devices, or ``backward`` is not
            among them.
    """
    found = [row for row in rows if row.suite == "kernels" and row.input == _KERNELS_INPUT]
    # rows without memcpy start from codes, so quantizing would be free
    found = [r for r in found if r.memcpy_s is not None and r.codec not in COPIES]
    # an exchange waits for sizes, which a replayed graph cannot do
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
            {name: keeps_bounds(own) for name, own in by_name.items()},
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


def keeps_bounds(rows: Iterable[ResultRow]) -> bool | None:
    """Return whether decoded values are exact or within promised bounds; None if none is promised."""
    found = {True if row.worst_error == 0 else row.bound_held for row in rows}
    return next(held for held in (False, None, True) if held in found)


def _profiles(
    costs: Mapping[str, CodecCosts], keeps: Mapping[str, bool | None], backward: str
) -> dict[str, Profile]:
    """Return the profiles of the baseline and every encoder.

    Raises:
        SpecError: ``backward`` is not among them.
    """
    every = {BASELINE: UNCODED, **costs}
    if backward not in every:
        raise SpecError(f"no row says how gradients fare with {backward!r}; use {', '.join(every)}")
    back = every[backward]
    if _has_fixed_size(backward):
        back = replace(back, has_sizes=False)
    coded = {name: Profile(name, one, back, keeps_bound=keeps[name]) for name, one in costs.items()}
    return {BASELINE: Profile(BASELINE, UNCODED, UNCODED), **coded}


def _has_fixed_size(name: str) -> bool:
    """Return whether an encoder's sizes are fixed, so that every rank knows those of gradients."""
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

    Several batches of one dump determine the ratio at several slice sizes, and the fixed cost of a
    call. A call encodes a rank's own slices, or a whole step if steps were measured in one call.
    Encoders that were not measured on every table, or whose speed is unknown, are omitted.

    Args:
        rows: rows of one dump on one device; they may differ in ``--batch``.
        backward: the codec for gradients.
        setting: part of the description of the look-ups to use, if there are several settings.

    Raises:
        SpecError: the rows have no look-ups or those of several dumps, devices or settings, no encoder
            covers every table, the tables were not looked up equally often, or ``backward`` is missing.
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
                name: keeps_bounds(rows[name] for place in found for rows in place.tables.values())
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
    """Reject tables that differ in their numbers of rows or slices."""
    every = [_facts(place, table) for table in place.tables]
    if len({(facts.num_rows, facts.num_slices) for facts in every}) > 1:
        raise SpecError(
            f"the tables of {place.input} were not looked up equally often; plan from dumps of whole steps"
        )


def _warnings(found: Sequence[DumpResults], every: Sequence[str], names: Sequence[str]) -> str:
    """Return caveats about these look-ups, joined to follow the source sentence."""
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
    """Return the bytes and seconds of an exchange, for encoding and for decoding.

    If tables were measured one by one, these are one rank's share: one slice of every table. If steps
    were measured in one call, they are those of a whole step.
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
