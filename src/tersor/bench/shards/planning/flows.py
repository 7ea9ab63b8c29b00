"""The collectives of each exchange method, and what they send.

A step under FSDP gathers the weights of every block twice and all others once, and reduce-scatters all
gradients, module by module. Under DDP, a step all-reduces all gradients, bucket by bucket. What our exchanges
do instead follows from their options in the ``spec`` of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tersor.bench.shards.planning.shapes import root_weights
from tersor.division import ceil_div
from tersor.errors import SpecError
from tersor.planning import Cluster, Collective, Scope
from tersor.sites.shards.hop import coded_nbytes
from tersor.sites.shards.options import CODED_BITS
from tersor.workloads.models.gpt import GptShape

Part = Literal["weights", "gradients"]
Backend = Literal["gloo", "nccl"]
BACKENDS: Final = ("gloo", "nccl")
VALUE_NBYTES: Final = 4
"""Bytes of a weight or gradient that is not encoded."""
_BUCKET_NBYTES, _FIRST_BUCKET_NBYTES = 25 * 2**20, 2**20
"""Default bucket sizes of DistributedDataParallel."""
_LOW_RANK_CALLS: Final = 3
"""PowerSGD's collectives per bucket: uncompressed tensors, and both factors of the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """A set of equal collectives, one for each module or bucket.

    Attributes:
        part: whether they move weights or gradients.
        collective: the collective operation.
        num_values: values of all collectives together, counted like ``Transfer.nbytes``.
        count: collectives per step.
        value_nbytes: encoded bytes per value, including scales and padding.
        scope: which ranks take part.
        is_ours: whether tersor sends them; the work between collectives is then timed as coding.
    """

    part: Part
    collective: Collective
    num_values: float
    count: int
    value_nbytes: float
    scope: Scope = Scope.ALL
    is_ours: bool = False

    @property
    def name(self) -> str:
        """A name that is unique within the step."""
        where = "" if self.scope is Scope.ALL else f" {self.scope.value}"
        return f"{self.part}, {self.collective.value}{where}"

    @property
    def is_far(self) -> bool:
        """Whether traffic may leave a node."""
        return self.scope is not Scope.WITHIN_NODES


def flows(
    spec: Mapping[str, Any], shape: GptShape, cluster: Cluster, num_ranks: int, backend: Backend
) -> list[Flow]:
    """Return the flows of one exchange method in a step, in order.

    Args:
        spec: spec of its rows.
        shape: shape of the model.
        cluster: the cluster.
        num_ranks: number of ranks.
        backend: the library of torch's collectives; gloo implements a reduce-scatter as an all-reduce.

    Raises:
        SpecError: the method has two hops, and the nodes are not full.
    """
    place = _Place(shape, num_ranks, cluster.local_ranks(num_ranks), backend)
    found = _fsdp(spec, place) if spec["wrapper"] == "fsdp" else _ddp(spec, place)
    return list(found)


@dataclass(frozen=True, slots=True)
class _Place:
    shape: GptShape
    num_ranks: int
    local_ranks: int
    backend: Backend

    @property
    def has_nodes(self) -> bool:
        """Whether there are several nodes with several ranks each, and thus two hops."""
        is_two_level = 1 < self.local_ranks < self.num_ranks
        if is_two_level and self.num_ranks % self.local_ranks:
            raise SpecError(
                f"{self.num_ranks} ranks do not fill nodes of {self.local_ranks}, and exchanges in two hops "
                "need full ones; choose other --ranks or --ranks-per-node"
            )
        return is_two_level

    def value_nbytes(self, options: Mapping[str, Any], nbits: int, count: int) -> float:
        """Return the encoded bytes per value if all values are split over ``count`` collectives."""
        if nbits not in CODED_BITS:
            return nbits / 8
        size = ceil_div(ceil_div(self.shape.num_parameters, count), self.num_ranks)
        return coded_nbytes(size, nbits, options["group"]) / size


def _fsdp(spec: Mapping[str, Any], place: _Place) -> Iterator[Flow]:
    plain_nbytes = 2 if spec["dtype"] == "bf16" else VALUE_NBYTES
    yield from _gathered(spec.get("weights"), place, plain_nbytes)
    num_modules = place.shape.layers + 1
    if spec.get("gradients") is not None:
        yield from _scattered(spec["gradients"], place, num_modules)
        return
    is_gloo = place.backend == "gloo"
    yield Flow(
        part="gradients",
        collective=Collective.ALL_REDUCE if is_gloo else Collective.REDUCE_SCATTER,
        num_values=place.shape.num_parameters, count=num_modules, value_nbytes=plain_nbytes,
    )  # fmt: skip


def _gathered(
    options: Mapping[str, Any] | None, place: _Place, plain_nbytes: float
) -> Iterator[Flow]:
    """Yield the gathers of weights; options of None mean FSDP's own."""
    shape, num_values = place.shape, place.shape.num_parameters
    plain = Flow(
        part="weights", collective=Collective.ALL_GATHER,
        # the root module is not freed between forward and backward
        num_values=2 * num_values - root_weights(shape), count=2 * shape.layers + 1,
        value_nbytes=plain_nbytes,
    )  # fmt: skip
    if options is None:
        yield plain
        return
    num_modules = shape.layers + 1
    value_nbytes = place.value_nbytes(options, options["nbits"], num_modules)
    coded = replace(plain, value_nbytes=value_nbytes, is_ours=True)
    if options["differences"]:
        coded = replace(coded, num_values=num_values, count=num_modules)
    if not place.has_nodes:
        yield coded
        return
    part = coded.num_values / place.local_ranks
    yield replace(coded, scope=Scope.BETWEEN_NODES, num_values=part)
    is_whole = options["reference"] == "whole"
    yield replace(coded if is_whole else plain, scope=Scope.WITHIN_NODES, is_ours=True)


def _scattered(options: Mapping[str, Any], place: _Place, count: int) -> Iterator[Flow]:
    """Yield the hops of gradients to the ranks that sum them."""
    near_nbytes, far_nbytes = (
        place.value_nbytes(options, options[name], count) for name in ("node_nbits", "nbits")
    )
    one = Flow(
        part="gradients", collective=Collective.ALL_TO_ALL, count=count, is_ours=True,
        num_values=place.shape.num_parameters, value_nbytes=far_nbytes,
    )  # fmt: skip
    if options["levels"] == 1 or not place.has_nodes:
        is_node = options["levels"] != 1 and place.local_ranks == place.num_ranks
        yield replace(one, value_nbytes=near_nbytes) if is_node else one
        return
    yield replace(one, scope=Scope.WITHIN_NODES, value_nbytes=near_nbytes)
    yield replace(one, scope=Scope.BETWEEN_NODES, num_values=one.num_values / place.local_ranks)


def _ddp(spec: Mapping[str, Any], place: _Place) -> Iterator[Flow]:
    whole = place.shape.num_parameters
    rest_nbytes = max(0, VALUE_NBYTES * whole - _FIRST_BUCKET_NBYTES)
    count = 1 + math.ceil(rest_nbytes / _BUCKET_NBYTES)
    if spec["hook"] != "tersor":
        is_low_rank = spec["hook"] == "powersgd"
        yield Flow(
            part="gradients", collective=Collective.ALL_REDUCE,
            num_values=_low_rank_values(place.shape) if is_low_rank else whole,
            count=count * (_LOW_RANK_CALLS if is_low_rank else 1),
            value_nbytes=2 if spec["hook"] == "bf16" else VALUE_NBYTES,
        )  # fmt: skip
        return
    options = spec["gradients"]
    yield from _scattered(options, place, count)
    mean = Flow(
        part="gradients", collective=Collective.ALL_GATHER, count=count, is_ours=True,
        num_values=whole, value_nbytes=place.value_nbytes(options, options["nbits"], count),
    )  # fmt: skip
    if not place.has_nodes:
        yield mean
        return
    yield replace(mean, scope=Scope.BETWEEN_NODES, num_values=whole / place.local_ranks)
    yield replace(mean, scope=Scope.WITHIN_NODES)


def _low_rank_values(shape: GptShape) -> int:
    """Return the values that PowerSGD sends at rank 1: whole vectors, and a matrix's rows + columns."""
    width = shape.width
    vectors, matrices = 13 * width, (3 + 1 + 1 + 1 + 4 + 1 + 1 + 4) * width
    root = 2 * width + (shape.vocabulary + width) + (shape.context + width)
    return shape.layers * (vectors + matrices) + root
