"""Fit the costs of exchange methods and of a machine to rows of the ``shards`` suite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from tersor.bench.core.rows import ResultRow, ShardRow, latest
from tersor.bench.core.shard_times import WRAPPERS
from tersor.bench.shards.contenders import BASELINES
from tersor.bench.shards.planning.description import Workload
from tersor.bench.shards.planning.flows import VALUE_NBYTES, Flow, Part, flows
from tersor.bench.shards.planning.model import FULL_SPEED, Fit, Kind, Method, Model, kind_of
from tersor.bench.shards.planning.shapes import guess_of_shape, measured_shape
from tersor.errors import SpecError
from tersor.planning import Cluster, Transfer, Transport, parse_bandwidth
from tersor.planning.curves import link_fit, nonnegative_fit
from tersor.workloads.models.gpt import GptShape

_PARTS: Final[tuple[Part, ...]] = ("weights", "gradients")
_NEEDED: Final = frozenset({"wrapper", "dtype", "hook"})
"""Keys that a row's spec must have to determine its collectives."""
_FAR_KINDS: Final[tuple[Kind, ...]] = ("ring", "pairwise")
_LEAST_S: Final = 1e-9
"""Lower limit of an exchange's time without coding, because errors are relative to that time."""


def plannable(rows: Iterable[ResultRow]) -> list[ShardRow]:
    """Return the rows of steps on throttled links."""
    return [row for row in rows if isinstance(row, ShardRow) and row.shards.link is not None]


def fit_rows(
    rows: Iterable[ResultRow],
    *,
    codecs: Sequence[str] | None = None,
    model: str | None = None,
    wrapper: str | None = None,
) -> Fit:
    """Fit all rows, and return the methods of one wrapper.

    If rows answer the same question, the last one counts.

    Args:
        rows: rows of result files.
        codecs: names of methods to include in addition to the baseline; None for all.
        model: the model whose steps to use, if there are several.
        wrapper: ``"fsdp"`` or ``"ddp"``; None for the first of them that has rows.

    Raises:
        SpecError: the rows do not suffice, or lack a requested name.
    """
    given = list(rows)
    found = plannable(latest(given))
    inputs = sorted({row.input for row in found})
    if model is not None and inputs and model not in inputs:
        raise SpecError(f"no row is of {model!r}; these are of {', '.join(inputs)}")
    fit = fit_shards(row for row in found if model in (None, row.input))
    there = [
        one
        for one in WRAPPERS
        if one in {method.spec["wrapper"] for method in fit.methods.values()}
    ]
    if wrapper is not None and wrapper not in there:
        raise SpecError(f"the rows are of {' and '.join(there)}, not of {wrapper!r}")
    used = wrapper or there[0]
    methods = {
        name: method for name, method in fit.methods.items() if method.spec["wrapper"] == used
    }
    for name in codecs or ():
        if name not in methods:
            raise SpecError(f"the rows of {used} hold {', '.join(methods)}, but no {name!r}")
    baseline = BASELINES[used]
    chosen = {
        n: method for n, method in methods.items() if codecs is None or n in (baseline, *codecs)
    }
    words = [fit.source]
    words += [f"--wrapper {one} shows the methods of {one}" for one in there if one != used]
    if len(latest(given)) < len(given):
        words.append("of rows that answer the same question the last one counts")
    return replace(fit, methods=chosen, baseline=baseline, source="; ".join(words))


def fit_shards(rows: Iterable[ResultRow]) -> Fit:
    """Fit all costs to rows of steps on throttled links, for both wrappers.

    Raises:
        SpecError: there are no such rows, or they are of several models or batches per rank, or a row
            does not say how it exchanges.
    """
    found = plannable(rows)
    if not found:
        raise SpecError(
            "these rows hold no step on a throttled link; make some with tersor bench shards as root"
        )
    _refuse_mixed(found)
    shape = measured_shape(found[0])
    methods = _methods(found, shape)
    seen = [one for row in found for one in _sent(row, methods[row.codec], shape)]
    transports = _fit_transports(seen)
    methods = {
        name: _with_hidden_coding(method, transports, seen) for name, method in methods.items()
    }
    for wrapper in WRAPPERS:
        methods |= _with_steps([row for row in found if row.shards.wrapper == wrapper], methods)
    links = ", ".join(dict.fromkeys(row.shards.link or "" for row in found))
    places = ", ".join(
        dict.fromkeys(
            f"{x.shards.num_ranks} ranks, {x.shards.ranks_per_node} per node" for x in found
        )
    )
    source = f"fitted to {len(found)} rows of {found[0].input}: {places}, links of {links}"
    guess = guess_of_shape(found[0])
    return Fit(
        methods=methods,
        baseline=BASELINES[found[0].shards.wrapper],
        transports=transports,
        shape=shape,
        source=source if guess is None else f"{source}; {guess}",
    )


def _refuse_mixed(rows: Sequence[ShardRow]) -> None:
    """Raise ``SpecError`` for rows that a single step cannot explain."""
    if len({row.input for row in rows}) > 1:
        names = ", ".join(sorted({row.input for row in rows}))
        raise SpecError(f"these rows are of several models ({names}); choose one with --input")
    if len({row.shards.tokens / row.shards.num_ranks for row in rows}) > 1:
        raise SpecError(
            "these rows are of several batches per rank, which compute differently long; give those of one"
        )
    silent = next((row.codec for row in rows if not row.spec.keys() >= _NEEDED), None)
    if silent is not None:
        raise SpecError(
            f"the rows of {silent} do not say how it exchanges; measure it again with tersor bench shards"
        )


def measured_model(fit: Fit, row: ShardRow) -> Model:
    """Return the model of the network on which a row was measured.

    Latency is part of the fitted costs of a collective. Loopback is not throttled, so traffic within a node
    only costs host time.
    """
    return Model(
        measured=fit.methods,
        baseline=fit.baseline,
        transports=fit.transports,
        workload=Workload(),
        shape=fit.shape,
        cluster=_cluster(row),
    )


def _cluster(row: ShardRow) -> Cluster:
    return Cluster(
        ranks_per_node=row.shards.ranks_per_node,
        inter_bits_per_s=parse_bandwidth(row.shards.link or ""),
        intra_bits_per_s=math.inf,
    )


def _methods(rows: Sequence[ShardRow], shape: GptShape) -> dict[str, Method]:
    """Return the methods with what their own rows determine: bytes beyond the payload, and coding."""
    methods = {}
    for name in dict.fromkeys(row.codec for row in rows):
        own = [row for row in rows if row.codec == name]
        made = [flows(row.spec, shape, _cluster(row), row.shards.num_ranks, "gloo") for row in own]
        coded = [_coded_nbytes(row, found) for row, found in zip(own, made, strict=True)]
        speeds = [r.encode_s.p50 / n if n else 0.0 for r, n in zip(own, coded, strict=True)]
        methods[name] = Method(
            name=name,
            spec=own[0].spec,
            counted=_counted(own, made),
            coding_s_per_byte=median(speeds),
            compute_s=0.0,
            overlap=0.0,
        )
    return methods


def _coded_nbytes(row: ShardRow, found: Iterable[Flow]) -> float:
    """Return the original bytes that a rank encodes and decodes in these flows."""
    nbytes = 0.0
    for flow in found:
        if flow.is_ours:
            _, members = flow.scope.group(_cluster(row), row.shards.num_ranks)
            coded = flow.collective.coded_nbytes(VALUE_NBYTES * flow.num_values, members)
            nbytes += sum(map(sum, coded))
    return nbytes


def _counted(
    rows: Sequence[ShardRow], made: Sequence[Sequence[Flow]]
) -> dict[tuple[Part, bool], float]:
    """Return the median ratio of the bytes that interfaces counted to those of the payload."""
    found: dict[tuple[Part, bool], list[float]] = {}
    for row, own in zip(rows, made, strict=True):
        cluster, ranks = _cluster(row), row.shards.num_ranks
        for part in _PARTS:
            measured = getattr(row.shards, part)
            if measured is None:
                continue
            for is_far, counted in ((True, measured.link_nbytes), (False, measured.node_nbytes)):
                sent = sum(
                    _sent_nbytes(flow, cluster, ranks)
                    for flow in own
                    if flow.part == part and flow.is_far is is_far
                )
                if sent and counted:
                    found.setdefault((part, is_far), []).append(counted / sent)
    return {key: median(ratios) for key, ratios in found.items()}


def _sent_nbytes(flow: Flow, cluster: Cluster, num_ranks: int) -> float:
    """Return the payload that leaves all nodes, or that is sent within them if none leaves."""
    one = Transfer(
        name=flow.name, collective=flow.collective, scope=flow.scope, count=flow.count,
        nbytes=flow.num_values / flow.count * flow.value_nbytes,
    )  # fmt: skip
    if flow.is_far:
        return cluster.num_nodes(num_ranks) * one.leaving_nbytes(cluster, num_ranks)
    passes = flow.count * flow.collective.num_passes
    return num_ranks * passes * one.sent(cluster, num_ranks).near_nbytes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sent:
    """The traffic of weights or gradients in one row, and how long it took.

    Attributes:
        method: the row's exchange method.
        num_passes: passes of all collectives.
        links_s: seconds on a node's link at full bandwidth, by the kind of collective.
        near_nbytes: bytes that a rank sends in collectives within nodes.
        payload_s: seconds of the exchanges without coding.
    """

    method: Method
    num_passes: float
    links_s: Mapping[Kind, float]
    near_nbytes: float
    payload_s: float

    @property
    def has_separate_coding_times(self) -> bool:
        """Whether coding was timed separately from sending."""
        return bool(self.method.spec["hook"] != "powersgd")


def _sent(row: ShardRow, method: Method, shape: GptShape) -> list[_Sent]:
    """Return the traffic of weights and of gradients in a row.

    The slowest rank may differ between the two, so their seconds are scaled to add up to those of the whole
    exchange. The seconds of coding are split in proportion to the coded bytes.
    """
    cluster, ranks = _cluster(row), row.shards.num_ranks
    measured = {p: x.seconds.p50 for p in _PARTS if (x := getattr(row.shards, p)) is not None}
    scale = row.shards.exchange_s.p50 / sum(measured.values())
    made = flows(row.spec, shape, cluster, ranks, "gloo")
    model = Model(
        measured={method.name: method}, baseline=method.name, transports=FULL_SPEED, workload=Workload(),
        shape=shape, cluster=cluster,
    )  # fmt: skip
    transfers = list(zip(made, model.step(method.name, ranks).transfers, strict=True))
    whole = _coded_nbytes(row, made)
    found = []
    for part, seconds in measured.items():
        coded = _coded_nbytes(row, (flow for flow in made if flow.part == part))
        coding_s = row.encode_s.p50 * coded / whole if whole else 0.0
        own = [one for flow, one in transfers if flow.part == part]
        counts = [one.count * one.collective.num_passes for one in own]
        traffic = [one.sent(cluster, ranks) for one in own]
        links_s, near_nbytes = dict.fromkeys(_FAR_KINDS, 0.0), 0.0
        for one, times, sent in zip(own, counts, traffic, strict=True):
            kind = kind_of(one)
            if kind == "near":
                near_nbytes += times * sent.near_nbytes
            else:
                group, _ = one.scope.group(cluster, ranks)
                links_s[kind] += times * sent.seconds(group)
        found.append(
            _Sent(
                method=method, num_passes=sum(counts), links_s=links_s, near_nbytes=near_nbytes,
                payload_s=max(_LEAST_S, scale * seconds - coding_s),
            )
        )  # fmt: skip
    return found


def _fit_transports(seen: Sequence[_Sent]) -> dict[Kind, Transport]:
    """Fit the costs of collectives; rings and all-to-alls each have their own efficiency."""
    own = [one for one in seen if one.has_separate_coding_times]
    if not own:
        raise SpecError(
            "coding and sending are not timed apart in these rows; add those of float32"
        )
    columns = [[one.num_passes for one in own], [one.near_nbytes for one in own]]
    links_s = [[one.links_s[kind] for one in own] for kind in _FAR_KINDS]
    slowdowns, costs = link_fit(links_s, columns, [one.payload_s for one in own])
    payload_s, near_s_per_byte = costs
    far = {
        kind: Transport(payload_s=payload_s, efficiency=1.0 / slowdown)
        for kind, slowdown in zip(_FAR_KINDS, slowdowns, strict=True)
    }
    # loopback is not throttled, so a byte within a node costs host time
    return {**far, "near": Transport(payload_s=payload_s, host_s_per_byte=near_s_per_byte)}


def _with_hidden_coding(
    method: Method, transports: Mapping[Kind, Transport], seen: Iterable[_Sent]
) -> Method:
    """Return the method with its hidden coding time: what its exchanges took beyond sending."""
    left = [
        one.payload_s
        - one.num_passes * transports["ring"].payload_s
        - sum(one.links_s[kind] / transports[kind].efficiency for kind in _FAR_KINDS)
        for one in seen
        if one.method.name == method.name and not one.has_separate_coding_times
    ]
    return replace(method, hidden_coding_s=max(0.0, median(left))) if left else method


def _with_steps(rows: Sequence[ShardRow], methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the methods of one wrapper with their computing time and the share of sending it hides.

    Methods with the same dtype have the same computing time. Rows of a single link do not determine the hidden
    share, which is then 0.
    """
    if not rows:
        return {}
    dtypes = sorted({row.spec["dtype"] for row in rows})
    is_of = [[float(row.spec["dtype"] == dtype) for row in rows] for dtype in dtypes]
    steps = [row.shards.step_s.p50 for row in rows]
    coding = [row.encode_s.p50 + methods[row.codec].hidden_coding_s for row in rows]
    payloads = [x.shards.exchange_s.p50 - coded for x, coded in zip(rows, coding, strict=True)]
    values = [step - coded for step, coded in zip(steps, coding, strict=True)]
    *compute, shown = nonnegative_fit([*is_of, payloads], values, steps)
    if shown > 1.0 or len({row.shards.link for row in rows}) == 1:
        shown = 1.0
        values = [value - payload for value, payload in zip(values, payloads, strict=True)]
        compute = nonnegative_fit(is_of, values, steps)
    by_dtype = dict(zip(dtypes, compute, strict=True))
    return {
        row.codec: replace(
            methods[row.codec], compute_s=by_dtype[row.spec["dtype"]], overlap=1.0 - shown
        )
        for row in rows
    }
