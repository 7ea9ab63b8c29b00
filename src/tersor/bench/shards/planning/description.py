"""A user's description of the sharded training step to plan for, in addition to the cluster."""

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
"""The keys of a file; the options of ``tersor plan`` have the same names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A description of a training step; values that are None are taken from measurements.

    Attributes:
        shape: shape of the model.
        backend: the library of collectives. gloo's collectives have the costs of the rows. nccl's cost
            only latency and bandwidth, and a reduce-scatter is sent around the ring once.
        compute_s: seconds of each rank's computing per step, without exchanges.
        coding_s_per_byte: seconds per original byte that a rank encodes or decodes.
        overlap: share of the payload's time that ranks spend computing.
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
        """Parse values from a file, from options, or from both merged.

        Keys of ``Cluster.parse`` may be present and are ignored.

        Raises:
            SpecError: a key is unknown, or a value is invalid.
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
