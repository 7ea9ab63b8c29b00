"""One measurement as one JSON line, in the same format for every suite.

A row records what was measured (codec, spec, input), on what (machine, versions, commit), how well it
compressed, and how fast it was.
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
"""Version of the row format, incremented if a field changes its meaning but not for new defaults."""

COPY_NBYTES: Final = 2**30
"""Bytes that the copy which measures the device's memory speed reads, and writes again."""

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
    """Return one row per question: the last one, even if another build measured it."""
    return list({row.question: row for row in rows}.values())


def row_key(**values: Any) -> str:
    """Build the key of a row from its identifying fields, which are known before measuring.

    Raises:
        SpecError: a key field is missing, or a value does not belong to the key.
    """
    if set(values) != set(_KEY_FIELDS):
        odd = min(set(values) ^ set(_KEY_FIELDS))
        raise SpecError(f"a row's key is made of {', '.join(_KEY_FIELDS)}; see {odd!r}")
    return json.dumps([values[name] for name in _KEY_FIELDS], sort_keys=True)


def row_identity(*, suite: str, **values: Any) -> dict[str, Any]:
    """Return the identifying fields of a new row, with defaults for those not given."""
    usual = {"threads": 1, "repeat": 1, "group": None, "git_commit": machine.git_commit()}
    return {"suite": suite, **usual, **values}


class ResultRow(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="codec"
):
    """One codec or peer measured on one input; subclasses add what is specific to their suites.

    The constructor does not check types; ``from_config`` and ``RowFile.append`` do.

    Attributes:
        suite: the benchmark, such as ``"kernels"``.
        codec: codec id, name of a codec variant (``spec`` has its options), or the peer's name if
            ``peer`` is set.
        version: codec version, or the peer's package version.
        spec: JSON-ready options; a relative bound is ``{"relative": r}``.
        input: name of the input.
        device: ``"cpu"`` or ``"cuda"``.
        num_values: values in the whole input.
        original_nbytes: uncompressed bytes of the whole input.
        encoded_nbytes: compressed bytes of the whole input.
        worst_error: largest absolute error of the slice whose error is largest relative to its bound;
            None if nothing lossy was done.
        error_bound: the absolute bound promised for that slice; None if none was promised.
        encode_s: seconds to encode the timed part of the input; ``clock`` says how they were timed.
        decode_s: seconds to decode it, into existing memory if the library can.
        memcpy_s: seconds to copy the timed part once with one thread, measured in turn with this
            row's own times.
        threads: threads the codec could use.
        sampled_fraction: share of the original bytes that was timed; ratio and error always cover
            the whole input.
        repeat: how often the data was repeated to fill the input; repetition flatters LZ and row
            deduplication.
        peer: whether this is another project's codec.
        entropy_bits: order-0 entropy of the quantized values in bits per value, each slice with its
            own histogram.
        distinct_rows: share of distinct rows per slice, for inputs made of rows.
        peak_extra_nbytes: peak memory beyond what the process held before, if measured.
        num_launches: kernels launched on the device by one ``"encode"`` and one ``"decode"``.
        workspace_nbytes: peak device memory of the first ``"encode"`` and ``"decode"``, beyond what
            was allocated before (such as their arguments) and including what encoding returns.
        copy_s: seconds to copy ``COPY_NBYTES`` on the device, in the same rounds.
        group: the table, the layer, or the direction and network of the row, if an input has several.
        quality: quality of the decoded data, or of what was trained on them.
        memory: memory of a whole run.
        clock: how ``encode_s``, ``decode_s``, ``memcpy_s`` and ``copy_s`` were timed; None if the row
            does not say (see ``timed_by``).
        lead: times of the same calls when queued ahead by the host, if the row's own are of a loop.
        note: caveats for readers who compare this row.
        command: the command line that measured it; empty if it was measured from Python.
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
        """Reject a relative bound that is not above 0, and ``lead`` unless ``clock`` is ``"loop"``."""
        require("lead", self.lead is None or self.clock == "loop", "null unless clock is 'loop'")
        bound = self.relative_bound
        require("bound", bound is None or (is_number(bound) and bound > 0), "above 0")

    @property
    def ratio(self) -> float:
        """Original size divided by encoded size, for the whole input."""
        return self.original_nbytes / max(1, self.encoded_nbytes)

    @property
    def timed_by(self) -> ClockKind | None:
        """The clock, inferred for rows of earlier versions that do not name it; None if unknown.

        On CUDA, rows without a clock but with ``copy_s`` were timed with the ``"lead"`` clock.
        """
        has_lead = self.device == "cuda" and self.copy_s is not None
        return self.clock or ("lead" if has_lead else None)

    @property
    def lead_times(self) -> LeadTimes | None:
        """Times of calls queued ahead: the row's own if timed by the ``"lead"`` clock, else ``lead``."""
        if self.timed_by != "lead":
            return self.lead
        return LeadTimes(encode_s=self.encode_s, decode_s=self.decode_s, memcpy_s=self.memcpy_s)

    @property
    def encode_gbps(self) -> float:
        """Median encoding speed in 1e9 original bytes per second."""
        return self.gbps(self.encode_s)

    @property
    def decode_gbps(self) -> float:
        """Median decoding speed in 1e9 original bytes per second."""
        return self.gbps(self.decode_s)

    @property
    def memcpy_gbps(self) -> float | None:
        """Median speed of copying the same bytes in the same rounds, in 1e9 bytes per second."""
        return None if self.memcpy_s is None else self.gbps(self.memcpy_s)

    @property
    def ceiling_gbps(self) -> float | None:
        """Bytes that the device's copy reads and writes, in 1e9 bytes per second."""
        return None if self.copy_s is None else 2 * COPY_NBYTES / max(self.copy_s.p50, 1e-12) / 1e9

    def moved_gbps(self, seconds: Percentiles) -> float:
        """Return the least traffic (original plus encoded bytes) in 1e9 bytes per second."""
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
        """The relative bound in the spec, if there is one."""
        bound = self.spec.get("bound")
        return bound.get("relative") if isinstance(bound, Mapping) else None

    @property
    def key(self) -> str:
        """The identity of the measurement; results, machine and package versions are not part of it."""
        return row_key(**{name: getattr(self, name) for name in _KEY_FIELDS})

    @property
    def question(self) -> str:
        """The key without version and commit, so rows of two builds can answer the same question."""
        names = [name for name in _KEY_FIELDS if name not in _BUILD_FIELDS]
        return json.dumps([getattr(self, name) for name in names], sort_keys=True)

    def gbps(self, seconds: Percentiles) -> float:
        """Return the median speed over the timed part in 1e9 original bytes per second."""
        return self.original_nbytes * self.sampled_fraction / max(seconds.p50, 1e-12) / 1e9

    def times(self) -> dict[str, Percentiles]:
        """Return the times by name; those of calls queued ahead have names of their own."""
        own = {"encode": self.encode_s, "decode": self.decode_s}
        lead = self.lead_times
        return {
            **(own if self.timed_by != "lead" else {}),
            **({} if lead is None else lead.times()),
        }

    def memcpy_of(self, name: str) -> Percentiles | None:
        """Return the copy's time by the same clock as the time ``name`` of ``times``."""
        lead = self.lead_times
        return lead.memcpy_s if lead is not None and name in lead.times() else self.memcpy_s

    def figures(self) -> dict[str, Estimate]:
        """Return the figures of quality and memory by name."""
        blocks = (self.quality, self.memory)
        return {k: v for one in blocks if one is not None for k, v in one.figures().items()}

    def traits(self) -> dict[str, str]:
        """Return the attributes by which a page can select rows."""
        bound = "none" if self.relative_bound is None else f"{self.relative_bound:g}"
        mib = str(round(self.original_nbytes / 2**20))
        return {"input": self.input, "codec": self.codec, "bound": bound, "mib": mib}

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, including derived ratio and speeds for readers of the file."""
        derived = {name: getattr(self, name) for name in _DERIVED}
        return {"schema": SCHEMA, **msgspec.to_builtins(self), **derived}

    @staticmethod
    def from_config(config: Any) -> ResultRow:
        """Rebuild a row from its JSON form.

        Raises:
            SpecError: a key is unknown or missing, the schema differs, or a value is invalid.
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
        exchange: times of the exchange; ``exchange_s`` includes encoding and decoding.
    """

    exchange: ExchangeTimes

    def times(self) -> dict[str, Percentiles]:
        """Return the times by name."""
        whole = {"exchange": self.exchange.exchange_s, "step": self.exchange.step_s}
        return {**super().times(), **whole}

    def traits(self) -> dict[str, str]:
        """Return the attributes by which a page can select rows."""
        link = self.exchange.link or self.exchange.network
        return {**super().traits(), "link": link, "batch": str(self.exchange.batch)}


class LookupRow(ResultRow, frozen=True, kw_only=True, tag="lookups"):
    """One encoder on the look-ups of a table or a step.

    Attributes:
        lookups: facts about the look-ups.
    """

    lookups: LookupFacts

    @property
    def timed_by(self) -> ClockKind | None:
        """See ``ResultRow.timed_by``; on CUDA, look-ups without a clock had the ``"lead"`` clock."""
        return self.clock or ("lead" if self.device == "cuda" else None)


class ShardRow(ResultRow, frozen=True, kw_only=True, tag="shards"):
    """Training steps whose ranks exchange weights and gradients with one setting.

    ``codec`` names the setting, ``input`` the model, and ``num_values`` is the number of its weights.
    ``original_nbytes`` is the least that float32 weights and gradients (under DDP, gradients alone) take
    on the links of all nodes; ``encoded_nbytes`` is what the links' counters report. ``encode_s`` covers
    all work between collectives, including decoding, and ``decode_s`` is zero.

    Attributes:
        shards: times and bytes of a step.
    """

    shards: ShardTimes

    def times(self) -> dict[str, Percentiles]:
        """Return the times by name."""
        return {"exchange": self.shards.exchange_s, "step": self.shards.step_s}

    def traits(self) -> dict[str, str]:
        """Return the attributes by which a page can select rows."""
        link = self.shards.link or self.shards.network
        return {**super().traits(), "link": link, "batch": str(self.shards.batch)}

    @property
    def bits_per_weight(self) -> float | None:
        """Bits sent to another node per weight and step, including headers; None if none are sent."""
        return self._bits(self.shards.weights)

    @property
    def bits_per_gradient(self) -> float | None:
        """Like ``bits_per_weight``, for gradients."""
        return self._bits(self.shards.gradients)

    def _bits(self, part: ShardPart | None) -> float | None:
        far = self.shards.num_ranks // self.shards.ranks_per_node - 1
        if part is None or part.link_nbytes is None or not far or not self.num_values:
            return None
        return 8 * part.link_nbytes / (far * self.num_values)


class TrainingRow(ResultRow, frozen=True, kw_only=True, tag="training"):
    """A whole training run with one setting, named by ``codec``; ``input`` is the model and its data.

    ``num_values`` is the number of weights. ``original_nbytes`` is what the first rank would have received
    without compression, and ``encoded_nbytes`` what it did receive. If saved tensors are compressed instead,
    these are the bytes that a step saves for backward and those that it holds, and ``num_values`` is the
    number of samples per batch. Both sizes are 0 if nothing counted them. ``encode_s`` and ``decode_s`` are
    zero.

    Attributes:
        training: seed, length and loss curve of the training run.
    """

    training: TrainingFacts

    def times(self) -> dict[str, Percentiles]:
        """Return no times, because a training run is measured for its quality."""
        return {}

    def traits(self) -> dict[str, str]:
        """Return the attributes by which a page can select rows."""
        return {**super().traits(), "seed": str(self.training.seed)}


class OperationRow(ResultRow, frozen=True, kw_only=True, tag="operation"):
    """One fused operation, called in a loop.

    ``codec`` names the operation. ``num_values`` counts the values that it quantizes, or that all senders
    sent; ``original_nbytes`` is their size as float32. ``encoded_nbytes`` is the size of the scales and codes
    that it reads or writes. ``encode_s`` and ``decode_s`` are both the time per call in a loop of calls,
    including the host's share. ``num_launches`` and ``workspace_nbytes`` have one entry, ``"call"``.

    Attributes:
        operation: bytes that it moves, and its time as a CUDA graph.
    """

    operation: OperationCost

    @property
    def timed_by(self) -> ClockKind | None:
        """See ``ResultRow.timed_by``; on CUDA, operations without a clock were timed in a loop."""
        return self.clock or ("loop" if self.device == "cuda" else None)

    def times(self) -> dict[str, Percentiles]:
        """Return the times by name."""
        graph_s = self.operation.graph_s
        return {"call": self.encode_s} | ({} if graph_s is None else {"graph": graph_s})

    def moved_gbps(self, seconds: Percentiles) -> float:
        """Return the bytes that a call reads and writes, in 1e9 bytes per second."""
        return self.operation.moved_nbytes / max(seconds.p50, 1e-12) / 1e9

    @property
    def ceiling_share(self) -> float | None:
        """Memory throughput as a share of a copy's: the device's copy, or memcpy on the CPU."""
        return self._share(self.encode_s)

    @property
    def graph_ceiling_share(self) -> float | None:
        """Like ``ceiling_share``, for the CUDA graph."""
        graph_s = self.operation.graph_s
        return None if graph_s is None else self._share(graph_s)

    def _share(self, seconds: Percentiles) -> float | None:
        ceiling = self.ceiling_gbps
        if ceiling is None and self.memcpy_gbps is not None:
            ceiling = 2 * self.memcpy_gbps
        return None if ceiling is None else self.moved_gbps(seconds) / ceiling

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, including the shares of the ceiling."""
        derived = {name: getattr(self, name) for name in _DERIVED_OF_OPERATIONS}
        return {**super().to_config(), **derived}


class ActivationRow(ResultRow, frozen=True, kw_only=True, tag="activations"):
    """A training step that holds what backward needs in the form that ``codec`` names.

    ``input`` is the model, and ``num_values`` the number of samples in its batch. ``original_nbytes`` is
    what the forward pass saves for backward, and ``encoded_nbytes`` what is held in its place. If the
    tensors cannot be observed one by one, these are the memory that the exact step and this one hold after
    forward. ``memory`` is what the process or the device holds after forward and at the step's peak, beyond
    parameters and gradients. The score of ``quality`` is the gradient similarity index, averaged over all
    weights. ``encode_s`` and ``decode_s`` are zero, because coding is part of the step.

    Attributes:
        activations: facts about the step.
    """

    activations: ActivationFacts

    def times(self) -> dict[str, Percentiles]:
        """Return the times by name."""
        return {"step": self.activations.step_s}

    def traits(self) -> dict[str, str]:
        """Return the attributes by which a page can select rows."""
        return {**super().traits(), "batch": str(self.activations.batch)}


def _with_kind(values: dict[str, Any]) -> dict[str, Any]:
    """Add the kind to a row of the format without kinds, which has every block but fills one at most."""
    blocks = {name: values.pop(name, None) for name in ("exchange", "lookups")}
    filled = {name: block for name, block in blocks.items() if block is not None}
    return {"kind": next(iter(filled), "codec"), **values, **filled}
