"""Casts to narrower floats.

torch's own casts are compiled, vectorised and round to nearest on a CPU, so the reference is also the
CPU implementation.
"""

from tersor.kernels.runtime.op import Op

scaled_cast = Op(
    "scaled_cast",
    {
        "reference": "tersor.kernels.group.cast.reference:scaled_cast",
        "cpu": "tersor.kernels.group.cast.reference:scaled_cast",
        "gpu": "tersor.kernels.group.cast.gpu:scaled_cast",
    },
)
scaled_uncast = Op(
    "scaled_uncast",
    {
        "reference": "tersor.kernels.group.cast.reference:scaled_uncast",
        "cpu": "tersor.kernels.group.cast.reference:scaled_uncast",
        "gpu": "tersor.kernels.group.cast.gpu:scaled_uncast",
    },
)

__all__ = ["scaled_cast", "scaled_uncast"]
