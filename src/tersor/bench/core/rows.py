"""One measurement as one JSON line, the same for every suite.

A row says what was measured (codec, spec, input), on what (machine, versions, commit), how well it
compressed and how fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from tersor.bench.core import machine
from tersor.bench.core.activation_facts import ActivationFacts
from tersor.bench.core.blocks import Estimate, Memory, Quality
from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.lead_times import LeadTimes
from tersor.bench.core.lookup_facts import LookupFacts
from tersor.bench.core.operation_cost import OperationCost
from tersor.bench.core.row_checks import Count, checked, is_number, require
from tersor.bench.core.shard_times import ShardPart, ShardTimes
from tersor.bench.core.timing import ClockKind, Percentiles
from tersor.bench.core.training_facts import TrainingFacts
from tersor.errors import SpecError

SCHEMA: Final = 1
"""Raised when a field changes its meaning; new fields with a default do not need it."""

COPY_NBYTES: Final = 2**30
"""Bytes that a copy reads, and writes again, to find how fast the device's memory is."""

_DERIVED: Final = (
    "ratio", "encode_gbps", "decode_gbps", "memcpy_gbps", "ceiling_gbps", "bound_held",
)  # fmt: skip
_DERIVED_OF_OPERATIONS: Final = ("ceiling_share", "graph_ceiling_share")
_KEY_FIELDS: Final = (
    "suite", "codec", "version", "spec", "input", "device", "num_values", "threads", "repeat",
    "group", "git_commit",
)  # fmt: skip
_BUILD_FIELDS: Final = ("version", "git_commit")


def latest(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return one row per question: of those that were measured again, be it by another build, the last."""
    return list({row.question: row for row in rows}.values())


def row_key(**values: Any) -> str:
    """Return the key of a row from its identifying fields, before anything is measured.

    Raises:
        SpecError: a field of the key is missing, or a value is not part of it.
    """
    if set(values) != set(_KEY_FIELDS):
        odd = min(set(values) ^ set(_KEY_FIELDS))
        raise SpecError(f"a row's key is made of {', '.join(_KEY_FIELDS)}; see {odd!r}")
    return json.dumps([values[name] for name in _KEY_FIELDS], sort_keys=True)


def row_identity(*, suite: str, **values: Any) -> dict[str, Any]:
    """Return the identifying fields of a row that is measured now, with what is usual for the others."""
    usual = {"threads": 1, "repeat": 1, "group": None, "git_commit": machine.git_commit()}
    return {"suite": suite, **usual, **values}


class ResultRow(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="codec"
):
    """One codec or peer measured on one input; subclasses say more about what was measured.

    A constructor takes any values; ``from_config`` and ``RowFile.append`` check them.

    Attributes:
        suite: the benchmark, such as ``"kernels"``.
        codec: codec id, the name of one of its variants (``spec`` says how it is set), or the
            peer's name where ``peer`` is true.
        version: codec version, or the peer's package version.
        spec: options, JSON-ready; a relative bound stands here as ``{"relative": r}``.
        input: name of the input.
        device: ``"cpu"`` or ``"cuda"``.
        num_values: values in the whole input.
        original_nbytes: uncompressed bytes of the whole input.
        encoded_nbytes: compressed bytes of the whole input.
        worst_error: largest absolute error, of the slice where it is largest relative to that
            slice's bound; None where nothing lossy was done.
        error_bound: the absolute bound promised for that slice; None if none was promised.
        encode_s: seconds to encode the timed part of the input; ``clock`` says how they were taken.
        decode_s: seconds to decode it, into existing memory where the library can.
        memcpy_s: seconds to copy the timed part once with one thread, measured in turn with this
            row's own times.
        threads: threads the codec could use.
        sampled_fraction: share of the original bytes that was timed; ratio and error always cover
            the whole input.
        repeat: how often the data was repeated to fill the input; copies flatter LZ and rows.
        peer: whether this is another project's codec.
        entropy_bits: order-0 entropy of the quantized values in bits per value, each slice with its
            own histogram.
        distinct_rows: share of distinct rows per slice, for inputs made of rows.
        peak_extra_nbytes: most memory held beyond what the process had before, where measured.
        num_launches: kernels started on the device by one ``"encode"`` and one ``"decode"``.
        workspace_nbytes: most device memory taken by the first ``"encode"`` and ``"decode"`` beyond
            what was allocated before, such as the tensors given to them; what encoding returns is part
            of it.
        copy_s: seconds to copy ``COPY_NBYTES`` on the device, in the same rounds.
        group: table, layer, or direction and network that the row is about, when an input has several.
        quality: of the decoded data, or of what was trained on them.
        memory: of a whole run.
        clock: how ``encode_s``, ``decode_s``, ``memcpy_s`` and ``copy_s`` were timed; None where that
            is not said: see ``timed_by``.
        lead: the same calls with a lead for the host, where the row's own times are those of a loop.
        note: what a reader must know to compare this row.
        command: what was typed to measure it; empty where Python was asked.
    """

    suite: str
    codec: str
    version: str
    spec: Mapping[str, Any]
    input: str
    device: str
    num_values: Count
    original_nbytes: Count
    encoded_nbytes: Count
    worst_error: float | None
    error_bound: float | None
    encode_s: Percentiles
    decode_s: Percentiles
    memcpy_s: Percentiles | None = None
    threads: Count = 1
    sampled_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    repeat: Count = 1
    peer: bool = False
    entropy_bits: float | None = None
    distinct_rows: float | None = None
    peak_extra_nbytes: int | None = None
    num_launches: Mapping[str, Count] | None = None
    workspace_nbytes: Mapping[str, Count] | None = None
    copy_s: Percentiles | None = None
    group: str | None = None
    quality: Quality | None = None
    memory: Memory | None = None
    clock: ClockKind | None = None
    lead: LeadTimes | None = None
    note: str = ""
    command: str = ""
    git_commit: str = "unknown"
    versions: Mapping[str, Any] = {}
    machine: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse a bound that nothing can be relative to, and times with a lead beside the same."""
        require("lead", self.lead is None or self.clock == "loop", "null unless clock is 'loop'")
        bound = self.relative_bound
        require("bound", bound is None or (is_number(bound) and bound > 0), "above 0")

    @property
    def ratio(self) -> float:
        """Original size over encoded size of the whole input."""
        return self.original_nbytes / max(1, self.encoded_nbytes)

    @property
    def timed_by(self) -> ClockKind | None:
        """The clock, also of rows of earlier versions, which do not name it; None for times of others.

        On CUDA those have a lead for the host, and the device's copy was timed with them.
        """
        has_lead = self.device == "cuda" and self.copy_s is not None
        return self.clock or ("lead" if has_lead else None)

    @property
    def lead_times(self) -> LeadTimes | None:
        """Times with a lead for the host: ``lead``, or the row's own if they were taken so."""
        if self.timed_by != "lead":
            return self.lead
        return LeadTimes(encode_s=self.encode_s, decode_s=self.decode_s, memcpy_s=self.memcpy_s)

    @property
    def encode_gbps(self) -> float:
        """Raw bytes encoded per second, in 1e9 bytes, by the median time."""
        return self.gbps(self.encode_s)

    @property
    def decode_gbps(self) -> float:
        """Raw bytes decoded per second, in 1e9 bytes, by the median time."""
        return self.gbps(self.decode_s)

    @property
    def memcpy_gbps(self) -> float | None:
        """Speed of copying the same bytes in the same rounds."""
        return None if self.memcpy_s is None else self.gbps(self.memcpy_s)

    @property
    def ceiling_gbps(self) -> float | None:
        """Bytes read and written per second by the device's copy, in 1e9 bytes."""
        return None if self.copy_s is None else 2 * COPY_NBYTES / max(self.copy_s.p50, 1e-12) / 1e9

    def moved_gbps(self, seconds: Percentiles) -> float:
        """Return what must be read and written at least, floats and encoded, per second."""
        moved_nbytes = (self.original_nbytes + self.encoded_nbytes) * self.sampled_fraction
        return moved_nbytes / max(seconds.p50, 1e-12) / 1e9

    @property
    def bound_held(self) -> bool | None:
        """Whether the worst error is within the bound; None if no bound was promised."""
        if self.error_bound is None or self.worst_error is None:
            return None
        return self.worst_error <= self.error_bound

    @property
    def relative_bound(self) -> float | None:
        """The relative bound asked for, if there was one."""
        bound = self.spec.get("bound")
        return bound.get("relative") if isinstance(bound, Mapping) else None

    @property
    def key(self) -> str:
        """What makes two rows the same measurement; results and versions are not part of it."""
        return row_key(**{name: getattr(self, name) for name in _KEY_FIELDS})

    @property
    def question(self) -> str:
        """The key without version and commit: rows of two builds that answer the same question."""
        names = [name for name in _KEY_FIELDS if name not in _BUILD_FIELDS]
        return json.dumps([getattr(self, name) for name in names], sort_keys=True)

    def gbps(self, seconds: Percentiles) -> float:
        """Return the raw bytes of the timed part per second, in 1e9 bytes, by the median time."""
        return self.original_nbytes * self.sampled_fraction / max(seconds.p50, 1e-12) / 1e9

    def times(self) -> dict[str, Percentiles]:
        """Return what was timed, by name; times with a lead have names of their own."""
        own = {"encode": self.encode_s, "decode": self.decode_s}
        lead = self.lead_times
        return {
            **(own if self.timed_by != "lead" else {}),
            **({} if lead is None else lead.times()),
        }

    def memcpy_of(self, name: str) -> Percentiles | None:
        """Return the time of a copy that was taken as one of ``times`` was."""
        lead = self.lead_times
        return lead.memcpy_s if lead is not None and name in lead.times() else self.memcpy_s

    def figures(self) -> dict[str, Estimate]:
        """Return quality and memory, by name."""
        blocks = (self.quality, self.memory)
        return {k: v for one in blocks if one is not None for k, v in one.figures().items()}

    def traits(self) -> dict[str, str]:
        """Return what a page can choose rows by."""
        bound = "none" if self.relative_bound is None else f"{self.relative_bound:g}"
        mib = str(round(self.original_nbytes / 2**20))
        return {"input": self.input, "codec": self.codec, "bound": bound, "mib": mib}

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form; ratio and speeds are written too, for readers of the file."""
        derived = {name: getattr(self, name) for name in _DERIVED}
        return {"schema": SCHEMA, **msgspec.to_builtins(self), **derived}

    @staticmethod
    def from_config(config: Any) -> ResultRow:
        """Rebuild a row.

        Raises:
            SpecError: a key is unknown or missing, the schema is another, or a value is not what it
                must be.
        """
        if not isinstance(config, Mapping) or config.get("schema") != SCHEMA:
            raise SpecError(f"a result row must be an object with schema {SCHEMA}")
        derived = ("schema", *_DERIVED, *_DERIVED_OF_OPERATIONS)
        values = {k: v for k, v in config.items() if k not in derived}
        if "kind" not in values:
            values = _with_kind(values)
        between = ExchangeRow | LookupRow | ShardRow
        row: ResultRow = checked(
            values, ResultRow | between | TrainingRow | OperationRow | ActivationRow
        )
        return row


class ExchangeRow(ResultRow, frozen=True, kw_only=True, tag="exchange"):
    """One direction of an exchange between ranks.

    Attributes:
        exchange: times beyond encoding and decoding, of which these two are then a part.
    """

    exchange: ExchangeTimes

    def times(self) -> dict[str, Percentiles]:
        """Return what was timed, by name."""
        whole = {"exchange": self.exchange.exchange_s, "step": self.exchange.step_s}
        return {**super().times(), **whole}

    def traits(self) -> dict[str, str]:
        """Return what a page can choose rows by."""
        link = self.exchange.link or self.exchange.network
        return {**super().traits(), "link": link, "batch": str(self.exchange.batch)}


class LookupRow(ResultRow, frozen=True, kw_only=True, tag="lookups"):
    """One encoder on the look-ups of a table or a step.

    Attributes:
        lookups: what is known of them.
    """

    lookups: LookupFacts

    @property
    def timed_by(self) -> ClockKind | None:
        """See ``ResultRow.timed_by``; here no copy of the device is timed."""
        return self.clock or ("lead" if self.device == "cuda" else None)


class ShardRow(ResultRow, frozen=True, kw_only=True, tag="shards"):
    """Steps of a training whose ranks exchange weights and gradients in one way.

    ``codec`` names the way, ``input`` the model, and ``num_values`` is the number of its weights.
    ``original_nbytes`` is what float32 weights and gradients, or gradients alone under DDP, take at least on
    the links of all nodes; ``encoded_nbytes`` is what the links' counters say. ``encode_s`` has all that
    is done between collectives, decoding too, and ``decode_s`` is zero.

    Attributes:
        shards: times and bytes of a step.
    """

    shards: ShardTimes

    def times(self) -> dict[str, Percentiles]:
        """Return what was timed, by name."""
        return {"exchange": self.shards.exchange_s, "step": self.shards.step_s}

    def traits(self) -> dict[str, str]:
        """Return what a page can choose rows by."""
        link = self.shards.link or self.shards.network
        return {**super().traits(), "link": link, "batch": str(self.shards.batch)}

    @property
    def bits_per_weight(self) -> float | None:
        """Bits that cross to another node per weight and step, headers included; None if none do."""
        return self._bits(self.shards.weights)

    @property
    def bits_per_gradient(self) -> float | None:
        """As ``bits_per_weight``, of gradients."""
        return self._bits(self.shards.gradients)

    def _bits(self, part: ShardPart | None) -> float | None:
        far = self.shards.num_ranks // self.shards.ranks_per_node - 1
        if part is None or part.link_nbytes is None or not far or not self.num_values:
            return None
        return 8 * part.link_nbytes / (far * self.num_values)


class TrainingRow(ResultRow, frozen=True, kw_only=True, tag="training"):
    """A whole training with one setting, which ``codec`` names; ``input`` is the model and its data.

    ``num_values`` is the number of weights. ``original_nbytes`` is what the first rank received, had nothing
    been compressed, and ``encoded_nbytes`` what it did receive. Where saved tensors are compressed they are what
    a step saves for backward and what it holds, and ``num_values`` the samples of a batch. Both are 0 where
    nothing counted them. ``encode_s`` and ``decode_s`` are zero.

    Attributes:
        training: its seed and length, and its curve.
    """

    training: TrainingFacts

    def times(self) -> dict[str, Percentiles]:
        """Return nothing: what a training is measured for is its quality."""
        return {}

    def traits(self) -> dict[str, str]:
        """Return what a page can choose rows by."""
        return {**super().traits(), "seed": str(self.training.seed)}


class OperationRow(ResultRow, frozen=True, kw_only=True, tag="operation"):
    """One fused operation, called in a loop.

    ``codec`` names the operation. ``num_values`` are those that it quantizes, or that all senders sent,
    and ``original_nbytes`` what they take as float32; ``encoded_nbytes`` has the scales and codes that it
    reads or writes. ``encode_s`` and ``decode_s`` are both the time of a call as a loop of calls sees it,
    with the host's share. ``num_launches`` and ``workspace_nbytes`` have one entry, ``"call"``.

    Attributes:
        operation: what it moves, and its time as a CUDA graph.
    """

    operation: OperationCost

    @property
    def timed_by(self) -> ClockKind | None:
        """See ``ResultRow.timed_by``; operations were always timed in a loop on CUDA."""
        return self.clock or ("loop" if self.device == "cuda" else None)

    def times(self) -> dict[str, Percentiles]:
        """Return what was timed, by name."""
        graph_s = self.operation.graph_s
        return {"call": self.encode_s} | ({} if graph_s is None else {"graph": graph_s})

    def moved_gbps(self, seconds: Percentiles) -> float:
        """Return what a call reads and writes, per second."""
        return self.operation.moved_nbytes / max(seconds.p50, 1e-12) / 1e9

    @property
    def ceiling_share(self) -> float | None:
        """Bytes moved per second, as a share of what a copy moves: the device's, or memcpy on the CPU."""
        return self._share(self.encode_s)

    @property
    def graph_ceiling_share(self) -> float | None:
        """As ``ceiling_share``, of the CUDA graph."""
        graph_s = self.operation.graph_s
        return None if graph_s is None else self._share(graph_s)

    def _share(self, seconds: Percentiles) -> float | None:
        ceiling = self.ceiling_gbps
        if ceiling is None and self.memcpy_gbps is not None:
            ceiling = 2 * self.memcpy_gbps
        return None if ceiling is None else self.moved_gbps(seconds) / ceiling

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, with the shares."""
        derived = {name: getattr(self, name) for name in _DERIVED_OF_OPERATIONS}
        return {**super().to_config(), **derived}


class ActivationRow(ResultRow, frozen=True, kw_only=True, tag="activations"):
    """A training step that holds what backward needs in one way, which ``codec`` names.

    ``input`` is the model, and ``num_values`` the samples of its batch. ``original_nbytes`` is what the
    forward pass saves for backward and ``encoded_nbytes`` what is held of it; where tensors cannot be seen
    one by one, these are the memory that the exact step and this one hold after forward. ``memory`` has
    what the process or the device held after forward, and at the peak of the step, beyond parameters and
    gradients; the score of ``quality`` is the gradient similarity index, its mean over all weights.
    ``encode_s`` and ``decode_s`` are zero: coding is part of the step.

    Attributes:
        activations: the step.
    """

    activations: ActivationFacts

    def times(self) -> dict[str, Percentiles]:
        """Return what was timed, by name."""
        return {"step": self.activations.step_s}

    def traits(self) -> dict[str, str]:
        """Return what a page can choose rows by."""
        return {**super().traits(), "batch": str(self.activations.batch)}


def _with_kind(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row that was written before rows had kinds: it has all blocks, and one is filled."""
    blocks = {name: values.pop(name, None) for name in ("exchange", "lookups")}
    filled = {name: block for name, block in blocks.items() if block is not None}
    return {"kind": next(iter(filled), "codec"), **values, **filled}
