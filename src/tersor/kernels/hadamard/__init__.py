"""Hadamard transform of order 32: spreads a large value over its 32 neighbours."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.hadamard"

hadamard = Op(
    "hadamard",
    {
        "reference": f"{_HERE}.reference:hadamard",
        "cpu": f"{_HERE}.cpu:hadamard",
        "gpu": f"{_HERE}.gpu:hadamard",
    },
)

__all__ = ["hadamard"]
