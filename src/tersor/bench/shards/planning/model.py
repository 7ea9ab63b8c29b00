"""Model steps of sharded and replicated training as transfers, with costs fitted to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tersor.bench.shards.planning.description import Workload
from tersor.bench.shards.planning.flows import VALUE_NBYTES, Flow, Part, flows
from tersor.errors import SpecError
from tersor.planning import (
    UNCODED,
    Cluster,
    CodecCosts,
    Line,
    Pattern,
    RatioCurve,
    Scope,
    Step,
    StepModel,
    Transfer,
    Transport,
)
from tersor.workloads.models.gpt import GptShape

Kind = Literal["ring", "pairwise", "near"]
"""Kinds of collectives with separate costs: by pattern if they cross nodes, or within nodes."""
FULL_SPEED: Final[Mapping[Kind, Transport]] = {
    "ring": Transport(), "pairwise": Transport(), "near": Transport(),
}  # fmt: skip
"""Transports of collectives that cost only latency and bandwidth."""
_FAR: Final = 4.0
_HEADERS: Final = (0.95, 1.5)
"""Range of link bytes divided by payload bytes that TCP can explain, even for small messages."""


def kind_of(transfer: Transfer) -> Kind:
    """Return the kind that determines a transfer's costs."""
    if transfer.scope is Scope.WITHIN_NODES:
        return "near"
    return "ring" if transfer.used_pattern is Pattern.RING else "pairwise"


def _is_far(growth: float) -> bool:
    return not 1 / _FAR <= growth <= _FAR


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One exchange method, as determined by its rows.

    Attributes:
        name: name of the method.
        spec: spec of its rows, which determines its collectives.
        counted: bytes that interfaces counted divided by those that the method must send, by what was
            moved and whether it left a node. A missing entry means 1.
        coding_s_per_byte: seconds per original byte that our exchanges encode or decode; other
            projects' coding is not timed separately.
        hidden_coding_s: seconds of coding in a step of the measured model, if coding is part of the
            timed exchange.
        compute_s: seconds of a rank's computing in a step of the measured model.
        overlap: share of the payloads' time that computing hid.
    """

    name: str
    spec: Mapping[str, Any]
    counted: Mapping[tuple[Part, bool], float]
    coding_s_per_byte: float
    hidden_coding_s: float = 0.0
    compute_s: float
    overlap: float

    @property
    def is_exact(self) -> bool:
        """Whether weights and gradients are sent exactly, in float32."""
        spec = self.spec
        nbits = [(spec.get("weights") or {}).get("nbits", 32)]
        if spec.get("gradients") is not None:
            nbits += [spec["gradients"][name] for name in ("node_nbits", "nbits")]
        return spec["dtype"] == "fp32" and spec["hook"] in ("none", "tersor") and set(nbits) == {32}


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(StepModel):
    """Everything that a prediction needs.

    Attributes:
        measured: the methods by name, including the baseline.
        transports: costs of collectives by kind.
        workload: the training step to plan for.
        shape: shape of the planned model.
        growth: weights of the planned model divided by those of the measured one.
    """

    measured: Mapping[str, Method]
    transports: Mapping[Kind, Transport]
    workload: Workload
    shape: GptShape
    growth: float = 1.0

    def __post_init__(self) -> None:
        """Reject a model without a baseline."""
        if self.baseline not in self.measured:
            raise SpecError(f"rows of {self.baseline} are needed: everything is compared with it")

    @property
    def methods(self) -> Mapping[str, bool | None]:
        """See ``StepModel.methods``; methods that send float32 are exact, and others promise no bound."""
        return {name: True if method.is_exact else None for name, method in self.measured.items()}

    def step(self, name: str, num_ranks: int) -> Step:
        """See ``StepModel.step``; the tokens per rank do not depend on the number of ranks."""
        method, workload = self.measured[name], self.workload
        found = flows(method.spec, self.shape, self.cluster, num_ranks, workload.backend)
        compute_s = workload.compute_s
        if compute_s is None:
            compute_s = method.compute_s * self.growth
        transfers = tuple(self._transfer(method, flow, len(found)) for flow in found)
        return Step(transfers, compute_s=compute_s)

    def leaving_nbytes(self, name: str, num_ranks: int) -> float:
        """Return the bytes that leave each node in a step."""
        transfers = self.step(name, num_ranks).transfers
        return sum(one.leaving_nbytes(self.cluster, num_ranks) for one in transfers)

    def _transfer(self, method: Method, flow: Flow, num_flows: int) -> Transfer:
        # the bytes that interfaces count beyond the payload are TCP overhead
        counted = method.counted if self.workload.backend == "gloo" else {}
        value_nbytes = flow.value_nbytes * counted.get((flow.part, flow.is_far), 1.0)
        overlap = method.overlap if self.workload.overlap is None else self.workload.overlap
        each = flow.num_values / flow.count
        plain = Transfer(
            name=flow.name, collective=flow.collective, scope=flow.scope, count=flow.count,
            overlap=overlap, nbytes=each * value_nbytes, costs=UNCODED,
        )  # fmt: skip
        transport = self.transports[kind_of(plain)]
        if not flow.is_ours:
            rest = Line(self._hidden_coding_s(method) / (num_flows * flow.count))
            return replace(plain, transport=replace(transport, rest={flow.name: rest}))
        line = Line(each_s=self.coding_s_per_byte(method))
        ratio = RatioCurve.fixed(VALUE_NBYTES / value_nbytes)
        costs = CodecCosts(line, line, ratio, has_sizes=False)
        return replace(plain, nbytes=each * VALUE_NBYTES, costs=costs, transport=transport)

    def coding_s_per_byte(self, method: Method) -> float:
        """Return our coding time per original byte: as described if given, else as measured."""
        said = self.workload.coding_s_per_byte
        return method.coding_s_per_byte if said is None else said

    def _hidden_coding_s(self, method: Method) -> float:
        said = self.workload.coding_s_per_byte
        if said is None or not method.hidden_coding_s:
            return method.hidden_coding_s * self.growth
        # one pass over all gradients for each of the two factors
        return 2 * said * VALUE_NBYTES * self.shape.num_parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Costs fitted to rows, to be combined with a description of a cluster.

    Attributes:
        methods: the methods of one wrapper or of both, by name.
        baseline: name of the method with which all others are compared.
        transports: costs of the machine and its gloo, by kind of collective.
        shape: shape of the measured model.
        source: a sentence on what was fitted to which rows.
    """

    methods: Mapping[str, Method]
    baseline: str
    transports: Mapping[Kind, Transport]
    shape: GptShape
    source: str

    def model(self, described: Mapping[str, Any]) -> Model:
        """Return the model of a cluster; described values take precedence over fitted ones.

        Args:
            described: values of a file or of options, with keys from ``description.KEYS``.

        Raises:
            SpecError: a key is unknown, a value is invalid, or the model is far from the measured one and its
                computing is not described.
        """
        workload = Workload.parse(described)
        shape = workload.shape or self.shape
        growth = shape.num_parameters / self.shape.num_parameters
        # times of CPUs, multiplied by hundreds, would outweigh all exchanges
        if workload.compute_s is None and _is_far(growth):
            raise SpecError(
                f"a step of {shape.num_parameters / 1e6:,.0f} million weights cannot be predicted from computing that was "
                f"measured with {self.shape.num_parameters / 1e6:,.0f} million on another machine; give a rank's computing per "
                "step with --compute-ms, or 0 to compare exchanges alone (compute_ms in a cluster file)"
            )
        transports = dict(self.transports if workload.backend == "gloo" else FULL_SPEED)
        if workload.efficiency is not None:
            for kind, one in transports.items():
                transports[kind] = replace(one, efficiency=workload.efficiency)
        return Model(
            measured=self.methods,
            baseline=self.baseline,
            transports=transports,
            cluster=Cluster.parse(described),
            workload=workload,
            shape=shape,
            growth=growth,
        )

    def notes(self, model: Model, ranks: Sequence[int]) -> list[str]:
        """Return caveats about a plan, such as which values come from the measured machine."""
        del ranks
        workload, found = model.workload, []
        taken = {"computing (--compute-ms)": workload.compute_s}
        if any(not method.is_exact for method in self.methods.values()):
            taken["coding (--coding-gbps)"] = workload.coding_s_per_byte
        parts = [part for part, said in taken.items() if said is None]
        if parts and (_is_far(model.growth) or workload.backend != "gloo"):
            found.append(
                f"{' and '.join(parts)} {'is' if len(parts) == 1 else 'are'} of the machine that was "
                f"measured, by weights: {self.shape.num_parameters / 1e6:,.3g} million there, "
                f"{model.shape.num_parameters / 1e6:,.6g} million here"
            )
        if workload.backend != "gloo" and workload.efficiency is None:
            found.append(
                "links are taken at their full bandwidth; --efficiency sets a smaller share"
            )
        if workload.backend != "gloo" and workload.overlap is None:
            hidden = self.methods[self.baseline].overlap
            found.append(
                f"computing hides {hidden:.0%} of sending, as with gloo in the rows; --overlap sets "
                "another share"
            )
        return [*found, *self._unexplained()]

    def _unexplained(self) -> list[str]:
        """Return a sentence for each method whose link traffic payload and headers do not explain."""
        low, high = _HEADERS
        return [
            f"{name}: links carried {times:.2g} times the {part} that this method should send"
            for name, method in self.methods.items()
            for (part, is_far), times in method.counted.items()
            if is_far and not low <= times <= high
        ]
