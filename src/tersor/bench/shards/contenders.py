"""The compared variants of exchanging weights and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import torch

from tersor import __version__
from tersor.errors import SpecError
from tersor.sites.shards import Gradients, Weights
from tersor.workloads.network.shard_variants import ExchangeVariant

_EXACT: Final = Gradients(node_nbits=32, nbits=32)
_VARIANTS: Final = (
    ExchangeVariant(name="fsdp-fp32", wrapper="fsdp"),
    ExchangeVariant(name="fsdp-bf16", wrapper="fsdp", dtype="bf16"),
    ExchangeVariant(name="fsdp-two-hop", wrapper="fsdp", gradients=_EXACT),
    ExchangeVariant(
        name="fsdp-8-bit", wrapper="fsdp", weights=Weights(nbits=8),
        gradients=Gradients(node_nbits=8, nbits=8),
    ),
    ExchangeVariant(name="fsdp-4-bit", wrapper="fsdp", weights=Weights(), gradients=Gradients()),
    ExchangeVariant(
        name="fsdp-4-bit-node", wrapper="fsdp", weights=Weights(reference="node"),
        gradients=Gradients(),
    ),
    ExchangeVariant(
        name="fsdp-4-bit-bf16", wrapper="fsdp", dtype="bf16", weights=Weights(),
        gradients=Gradients(),
    ),
    ExchangeVariant(name="ddp-fp32", wrapper="ddp"),
    ExchangeVariant(name="ddp-bf16", wrapper="ddp", hook="bf16"),
    ExchangeVariant(name="ddp-powersgd", wrapper="ddp", hook="powersgd"),
    ExchangeVariant(name="ddp-4-bit", wrapper="ddp", hook="tersor", gradients=Gradients()),
)  # fmt: skip
VARIANTS: Final[Mapping[str, ExchangeVariant]] = {variant.name: variant for variant in _VARIANTS}
"""The variants by name.

FSDP2 in float32, in bfloat16, and with two hops that send exact gradients. Our exchanges under FSDP2 in 8 and
4 bits, with a whole reference of the weights or one per node, and for a model that computes in bfloat16. DDP
in float32, with torch's hooks, and with ours.
"""
BASELINES: Final = {"fsdp": "fsdp-fp32", "ddp": "ddp-fp32"}
"""The variant with which others are compared, by the wrapper of the model."""
OURS: Final = ("fsdp-8-bit", "fsdp-4-bit", "fsdp-4-bit-node", "fsdp-4-bit-bf16", "ddp-4-bit")
GLOO_NOTE: Final = (
    "gloo's reduce-scatter costs as much as an all-reduce: with 2 nodes of 2 ranks, 6 shards leave each "
    "node where 2 would do"
)
NOTES: Final[Mapping[str, str]] = {
    "fsdp-fp32": GLOO_NOTE,
    "fsdp-bf16": f"computes in bfloat16 too, which many CPUs do slowly; {GLOO_NOTE}",
    "fsdp-4-bit-bf16": "computes in bfloat16, as fsdp-bf16 does; gradients are added up in float32",
    "fsdp-two-hop": "gradients in float32, first within nodes, then across; weights by FSDP",
    "ddp-powersgd": "rank 1, torch's default, with error feedback; a bucket at a time, as gloo needs it",
}


def make_variant(name: str) -> ExchangeVariant:
    """Return the variant with a name.

    Raises:
        SpecError: no variant has that name.
    """
    if name not in VARIANTS:
        raise SpecError(f"exchange methods are {', '.join(VARIANTS)}, not {name!r}")
    return VARIANTS[name]


def described(variant: ExchangeVariant) -> tuple[str, dict[str, Any]]:
    """Return the version and options of a variant, for its row."""
    parts = {"weights": variant.weights, "gradients": variant.gradients}
    options = {name: asdict(part) for name, part in parts.items() if part is not None}
    is_ours = variant.name in OURS
    spec = {"wrapper": variant.wrapper, "dtype": variant.dtype, "hook": variant.hook, **options}
    return __version__ if is_ours else str(torch.__version__), spec
