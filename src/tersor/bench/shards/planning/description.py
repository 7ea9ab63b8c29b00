"""The training step that a plan is made for, as a user describes it beside a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from tersor.bench.planning.description import (
    SHARED_KEYS,
    read_efficiency,
    read_milliseconds,
    read_number,
    refuse_unknown,
)
from tersor.bench.shards.planning.flows import BACKENDS, Backend
from tersor.bench.shards.planning.shapes import parse_shape
from tersor.errors import SpecError
from tersor.workloads.models.gpt import GptShape

KEYS: Final = (*SHARED_KEYS, "parameters", "backend", "coding_gbps")
"""What a file may say; the options of ``tersor plan`` have the same names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A training step, as far as it was described; None is left to what was measured.

    Attributes:
        shape: of the model.
        backend: whose collectives are used. Of gloo's, costs are those of the rows; nccl's have none but
            latency and bandwidth, and send a reduce-scatter once round the ring.
        compute_s: of each rank per step, without exchanges.
        coding_s_per_byte: of each original byte that a rank encodes or decodes.
        overlap: share of the time that payloads travel during which ranks compute.
        efficiency: share of a link's bandwidth that collectives reach.
    """

    shape: GptShape | None = None
    backend: Backend = "gloo"
    compute_s: float | None = None
    coding_s_per_byte: float | None = None
    overlap: float | None = None
    efficiency: float | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of a file, of options, or of both together; ``Cluster.parse`` reads others.

        Raises:
            SpecError: a key that neither knows, or a value that cannot be meant.
        """
        refuse_unknown(values, KEYS)
        parameters, backend = values.get("parameters"), values.get("backend", "gloo")
        if backend not in BACKENDS:
            raise SpecError(f"backend is {' or '.join(BACKENDS)}, not {backend!r}")
        gbps = read_number(values, "coding_gbps", 0)
        if gbps == 0:
            raise SpecError("coding_gbps must be above 0")
        return cls(
            shape=None if parameters is None else parse_shape(str(parameters)),
            backend=backend,
            compute_s=read_milliseconds(values, "compute_ms"),
            coding_s_per_byte=None if gbps is None else 1e-9 / gbps,
            overlap=read_number(values, "overlap", 0, 1),
            efficiency=read_efficiency(values),
        )
