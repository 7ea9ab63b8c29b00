"""Smallest and largest finite value of a tensor."""

from tersor.kernels.op import Op

finite_range = Op(
    "finite_range",
    {
        "reference": "tersor.kernels.finite_range.reference:finite_range",
        "cpu": "tersor.kernels.finite_range.cpu:finite_range",
        "gpu": "tersor.kernels.finite_range.gpu:finite_range",
    },
)

__all__ = ["finite_range"]
