"""Named schemes for the exchange of weights and gradients between ranks."""

from __future__ import annotations

from typing import Final, NamedTuple

from tersor.sites.shards import Gradients, Weights


class Scheme(NamedTuple):
    """Compression of weights and gradients; None leaves them uncompressed."""

    weights: Weights | None
    gradients: Gradients | None
    description: str


_QWD, _TLQ_HS = Weights(), Gradients()

SCHEMES: Final = {
    "exact": Scheme(None, None, "nothing is compressed"),
    "direct": Scheme(
        # as published; with rounding to nearest, training adapts to the 4-bit weights
        Weights(differences=False, rounding="stochastic"), None,
        "weights in 4 bits, without differences",
    ),
    "qwd": Scheme(_QWD, None, "differences of weights in 4 bits"),
    "ulq": Scheme(
        None, Gradients(node_nbits=4, nbits=4, hadamard=False), "gradients in 4 bits in both hops"
    ),
    "tlq": Scheme(None, Gradients(hadamard=False), "gradients in 8 bits in a node and 4 across"),
    "tlq-hs": Scheme(None, _TLQ_HS, "the same with a Hadamard transform"),
    "both": Scheme(_QWD, _TLQ_HS, "qwd and tlq-hs"),
    "both-node": Scheme(Weights(reference="node"), _TLQ_HS, "both, the reference sharded in a node"),
    "8bit": Scheme(Weights(nbits=8), Gradients(nbits=8), "weights and gradients in 8 bits"),
    "two-hop": Scheme(
        None, Gradients(node_nbits=32, nbits=32), "gradients as they are, by node and then across"
    ),
    "loco": Scheme(
        None, Gradients(levels=1, hadamard=False, error_feedback=0.8),
        "gradients in 4 bits in one hop, with error feedback",
    ),
}  # fmt: skip
"""Schemes by the names used in papers and by ``tersor train gpt --scheme``."""
