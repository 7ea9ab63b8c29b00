"""A model with round numbers, so that tests can say what it must predict."""

from __future__ import annotations

from dataclasses import replace

from tersor.bench.embeddings.planning.description import Workload
from tersor.bench.embeddings.planning.model import Model, Profile
from tersor.planning import Cluster, CodecCosts, Line, RatioCurve, Transport

GBIT = 1e9


def fixed(ratio: float) -> RatioCurve:
    return RatioCurve(((1.0, ratio), (1e6, ratio)))


def profile(
    name: str, ratio: float, encode: Line, decode: Line, *, has_sizes: bool = True, **changes
) -> Profile:
    costs = CodecCosts(encode, decode, fixed(ratio), has_sizes)
    return Profile(name, costs, costs, **changes)


def model(*profiles: Profile, bits_per_s: float = 8 * GBIT, **changes) -> Model:
    """Return a model of links without latency, 1000 bytes per sample and 1000 samples per rank."""
    free = profile("float32", 1.0, Line(), Line(), has_sizes=False)
    made = Model(
        profiles={one.name: one for one in (free, *profiles)},
        transport=Transport(),
        cluster=Cluster(inter_bits_per_s=bits_per_s, intra_bits_per_s=1000 * GBIT),
        workload=Workload(batch=None, batch_per_rank=1000),
        sample_nbytes=1000.0,
    )
    return replace(made, **changes)


# 1 MB per rank: 10 and 50 us of coding each way; float32 takes 1 ms * (R - 1) / R at 8 Gbit/s
FAST = profile("fast", 4.0, Line(0.0, 5e-12), Line(0.0, 5e-12))
SMALL = profile("small", 20.0, Line(0.0, 25e-12), Line(0.0, 25e-12))
