"""Hadamard transform of order 32: spreads a large value over its 32 neighbours."""

from tersor.kernels.runtime.op import Op

hadamard = Op(
    "hadamard",
    {
        "reference": "tersor.kernels.transform.reference:hadamard",
        "cpu": "tersor.kernels.transform.cpu:hadamard",
        "gpu": "tersor.kernels.transform.gpu:hadamard",
    },
)

__all__ = ["hadamard"]
